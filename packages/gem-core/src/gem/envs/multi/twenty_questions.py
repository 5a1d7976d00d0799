"""Twenty questions: one agent asks about a hidden animal, the other answers; both win or lose."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from gem.envs.games.base import boxed
from gem.envs.multi.base import Match, picked
from gem.parameters import integer

FEATURES = ("mammal", "bird", "flies", "swims", "big", "hunts", "tame", "striped", "tropical")

_TABLE = """
bat: mammal flies hunts
bear: mammal big hunts
bee: flies striped tame
cat: mammal hunts tame
chicken: bird tame
cow: mammal big tame
crocodile: swims big hunts tropical
dolphin: mammal swims big hunts
duck: bird flies swims tame
eagle: bird flies hunts
elephant: mammal big tropical
frog: swims hunts
goldfish: swims tame
horse: mammal big tame swims
mouse: mammal
ostrich: bird big tropical
parrot: bird flies tame tropical
penguin: bird swims hunts
rabbit: mammal tame
shark: swims big hunts
snail:
swan: bird flies swims
tiger: mammal swims big hunts striped tropical
wasp: flies striped hunts
whale: mammal swims big
zebra: mammal big striped tropical
"""
ANIMALS = {
    name: frozenset(has.split())
    for name, _, has in (line.partition(":") for line in _TABLE.split("\n") if line)
}
"""The features of each animal; no two have the same."""


_VERBS = {"flies": "fly", "swims": "swim", "hunts": "hunt"}
_ARTICLES = {"mammal": "a ", "bird": "a "}


class TwentyQuestions(Match):
    """Twenty questions about 26 animals with nine features, for two with unequal roles.

    The asker asks for a feature or names an animal; the answerer, who sees the animal, says yes or
    no, and may lie. Rewards: 1 for both if the asker names the animal within its questions, else 0.
    The oracle asks the question that splits best what is left, and answers truly: five or six
    questions are enough. A name that is wrong counts as a question, without an answer of the other.

    Attributes:
        secret: The animal.
        answers: Each question that was asked, and its answer.
    """

    agents = ("asker", "answerer")
    zero_sum = False
    default_opponent = "oracle"

    def __init__(
        self, questions: int = 20, *, on_illegal: str = "lose", seed: int | None = None
    ) -> None:
        """Set the parameters.

        Args:
            questions: Questions of a match, wrong names included.
            on_illegal: See `Match`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(on_illegal=on_illegal, seed=seed)
        self.questions = integer("questions", questions, 1, 20)

    def candidates(self) -> list[str]:
        """Return the animals that agree with all answers so far."""
        return [name for name in ANIMALS if self._agrees(name, self.answers)]

    def _start(self) -> None:
        self.secret = self.rng.choice(list(ANIMALS))
        self.answers: list[tuple[str, bool]] = []
        self._open = ""
        self._found = False

    def _agrees(self, name: str, answers: Iterable[tuple[str, bool]]) -> bool:
        return all(
            (what in ANIMALS[name] if what in FEATURES else what == name) is said
            for what, said in answers
        )

    def _rules(self, agent: str) -> str:
        if agent == "answerer":
            return (
                "You know an animal that the other player has to find. Answer each question with "
                "yes or no. Both of you win if the other names the animal in time."
            )
        return (
            f"Find the animal that the other player knows, within {self.questions} questions. Ask "
            "for a feature, or name an animal; a wrong name counts as a question. Both of you win "
            f"if you name it in time. Animals: {', '.join(ANIMALS)}."
        )

    def _all_moves(self) -> tuple[str, ...]:
        return (*FEATURES, *ANIMALS, "yes", "no")

    def _next(self) -> tuple[str, ...]:
        if self._open:
            return ("answerer",)
        return () if self._found or len(self.answers) >= self.questions else ("asker",)

    def _legal(self, agent: str) -> tuple[str, ...]:
        if agent not in self._next():
            return ()
        return ("yes", "no") if self._open else (*FEATURES, *ANIMALS)

    def _view(self, agent: str) -> str:
        known = f"The animal: {self.secret}." if agent == "answerer" else ""
        asked = f" The question: {_asked(self._open)}" if self._open else ""
        return f"{known}{asked} Questions left: {self.questions - len(self.answers)}.".strip()

    def render(self, agent: str) -> str:
        """Return what the agent sees, and all answers so far."""
        said = (f"{what}: {'yes' if answer else 'no'}" for what, answer in self.answers)
        return "\n".join([super().render(agent), *said])

    def _play(self, moves: dict[str, str]) -> dict[str, float]:
        [(agent, move)] = moves.items()
        if agent == "answerer":
            self.answers.append((self._open, move == "yes"))
            self._news["asker"].append(f"Your question: {_asked(self._open)} {move}.")
            self._open = ""
        elif move in FEATURES:
            self._open = move
        else:
            self._found = move == self.secret
            self._tell(f"The asker names {move}: {'right' if self._found else 'wrong'}.")
            self.answers.append((move, self._found))
        return dict.fromkeys(self.agents, float(self._found))

    def _ending(self, agent: str) -> str:
        return f"The match is over. The animal is {self.secret}."

    def resample(self, agent: str, rng: Random) -> bool:
        """Hide another animal that the asker cannot tell from this one."""
        if agent == "answerer":
            return False
        # Answers of the other may be lies: only names are facts.
        named = [(what, said) for what, said in self.answers if what in ANIMALS]
        self.secret = rng.choice([name for name in ANIMALS if self._agrees(name, named)])
        return True

    def oracle_action(self, agent: str, rng: Random | None = None) -> str:
        """Answer truly; ask the question that leaves the fewest animals at worst."""
        _ = self.episode_key
        if agent not in self._next():
            return self.sample_random_action(agent)
        if agent == "answerer":
            return boxed("yes" if self._open in ANIMALS[self.secret] else "no")
        left = self.candidates()
        if len(left) <= 2:
            # After lies nothing may be left: then any that was not named is as good.
            named = [what for what, _ in self.answers]
            return boxed(picked(left or [name for name in ANIMALS if name not in named], rng))
        worst = {
            each: max(sum((each in ANIMALS[name]) is has for name in left) for has in (True, False))
            for each in FEATURES
        }
        return boxed(picked([each for each in FEATURES if worst[each] == min(worst.values())], rng))


def _asked(feature: str) -> str:
    """Return a question as a sentence."""
    return (
        f"does it {_VERBS[feature]}?"
        if feature in _VERBS
        else f"is it {_ARTICLES.get(feature, '')}{feature}?"
    )
