"""JUnit XML, which CI systems show: a test case for each environment, one for a gate's verdict.

`<error>` is an environment with too many void episodes or with episodes that were not played, or a
gate without a verdict; `<failure>` is a gate that found the evaluation worse.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from gem_eval.comparison import Verdict
from gem_eval.numbers import Numbers, Summary
from gem_eval.tables import interval

_NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def of_report(summaries: Sequence[Summary], max_failed: float) -> str:
    """Return the results as XML, a suite for each evaluation.

    Args:
        summaries: The evaluations.
        max_failed: Largest share of an environment's episodes that may be void.
    """
    suites = Element("testsuites", name="gem eval")
    for summary in summaries:
        _suite(suites, summary, max_failed)
    return _text(suites)


def of_gate(summaries: Sequence[Summary], max_failed: float, verdict: Verdict, reason: str) -> str:
    """Return a verdict as XML: as `of_report`, with a case `gate` in the first suite.

    Args:
        summaries: The evaluation, and the one that it is compared with.
        max_failed: Largest share of an environment's episodes that may be void.
        verdict: The verdict.
        reason: Its reason.
    """
    suites = Element("testsuites", name="gem eval gate")
    for summary in summaries:
        _suite(suites, summary, max_failed)
    suite = suites[0]
    case = SubElement(suite, "testcase", classname=suite.get("name", ""), name="gate")
    kinds = {Verdict.WORSE: "failure", Verdict.UNDECIDED: "error"}
    if verdict in kinds:
        kind = kinds[verdict]
        SubElement(case, kind, type=verdict.name.lower(), message=_clean(reason))
        suite.set(f"{kind}s", str(int(suite.get(f"{kind}s", "0")) + 1))
    else:
        SubElement(case, "system-out").text = _clean(reason)
    suite.set("tests", str(len(suite)))
    return _text(suites)


def _suite(suites: Element, summary: Summary, max_failed: float) -> None:
    name = _clean(f"{summary.model} ({summary.folder})")
    suite = SubElement(suites, "testsuite", name=name)
    errors = 0
    for part in summary.parts:
        case = SubElement(suite, "testcase", classname=name, name=_clean(part.name))
        if part.missing:
            SubElement(case, "error", type="cut off", message=part.cut_off)
        elif part.too_many_failed(max_failed):
            SubElement(case, "error", type="void", message=_void(part))
        errors += case.find("error") is not None
        SubElement(case, "system-out").text = (
            f"success {interval(part.success)}, return {interval(part.total)}, "
            f"{part.tasks} tasks, {part.episodes} episodes, {_void(part)}"
        )
    suite.set("tests", str(len(summary.parts)))
    suite.set("failures", "0")
    suite.set("errors", str(errors))


def _void(part: Numbers) -> str:
    void = sum(part.failed.values())
    causes = ", ".join(f"{cause} {count}" for cause, count in part.failed.items())
    return f"{void} void ({causes})" if void else f"{void} void"


def _clean(text: str) -> str:
    return _NO_XML.sub("?", text)


def _text(root: Element) -> str:
    indent(root)
    return tostring(root, encoding="unicode", xml_declaration=False)
