"""The environment of generated retail tasks, for training."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from gem.core import Step
from gem.errors import ConfigurationError
from gem.parameters import choice, extending, flag, integer, listed, number
from gem_tau.data import Call, Task, database
from gem_tau.generated import INTENTS, REFUSAL, Shape, generated
from gem_tau.oracle import search
from gem_tau.outcome import TRANSFER
from gem_tau.retail import Retail, RetailOptions, prompt
from gem_tau.retail_tools import TOOLS

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LIMIT = 1 << 48
_SEARCHES = ("find_user_id_by_email", "find_user_id_by_name_zip")
_READ = "get_order_details"
_WRITES = {
    "cancel": "cancel_pending_order",
    "return": "return_delivered_order_items",
    "exchange": "exchange_delivered_order_items",
    "items": "modify_pending_order_items",
    "address": "modify_pending_order_address",
    "payment": "modify_pending_order_payment",
    "profile": "modify_user_address",
}
_BRIEF = """You serve customers of a shop. Each turn is one tool call, \
<tool_call>{{"name": "...", "arguments": {{...}}}}</tool_call>, or a message. Find the customer \
first; ask for consent before you change anything.{refusals}
Tools: {tools}"""


class RetailGen(Retail):
    """Generated retail tasks with the tools and the database of TAU-bench, for training.

    A customer of the database has one or more wishes; the tools decide what is right. Wishes may
    have conditions, and may be forbidden: then the agent must say "I cannot do that", which counts
    once it has found the customer and read an order of theirs. No task shares a write with one of
    the benchmark's 114, and doing nothing earns nothing. There are 2^48 tasks of each shape.

    Rewards and infos are those of `Retail`. With `first_call_reward` r, success pays 1 - r, and the
    first tool call of an episode pays up to r: a quarter for any call of a tool there is, half for
    the right tool, all for the right search for the customer. Its share is the info `first_call`.
    """

    @extending(Retail, "data", "split", "reward", "eval")
    def __init__(
        self,
        *,
        intents: str | Sequence[str] = tuple(INTENTS),
        max_intents: int = 3,
        conditions: float = 0.3,
        brief: bool = False,
        first_call_reward: float = 0.0,
        **options: Unpack[RetailOptions],
    ) -> None:
        """Store the parameters; see `Retail` for those not listed.

        Args:
            intents: Kinds of wishes, as a list or separated by commas: `cancel`, `return`,
                `exchange`, `items`, `address`, `payment`, `profile`, `refuse`.
            max_intents: Most wishes of a customer.
            conditions: Share of the wishes for another variant of one item that have a condition.
            brief: A short text takes the place of the policy, with the tools that the wishes need;
                the customer says at once who it is and names orders by number.
            first_call_reward: Reward of the right first tool call, from 0 to 1.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(**options)
        kinds = listed("intents", intents, lambda value: False)
        if not kinds:
            raise ConfigurationError(f"intents must name at least one of {', '.join(INTENTS)}")
        self.shape = Shape(
            tuple(choice("intents", kind, tuple(INTENTS)) for kind in kinds),
            integer("max_intents", max_intents, 1, 3),
            _share("conditions", conditions),
            flag("brief", brief),
        )
        self.first_call_reward = _share("first_call_reward", first_call_reward)
        if self.shape.brief:
            self.tool_names = _needed(self.shape.intents)

    def _choose(self, idx: Any) -> None:
        self._first_call: float | None = None
        self._paid = False
        if idx is None:
            self.index = self.rng.randrange(_LIMIT)
        else:
            self.index = integer("idx", idx, 0, _LIMIT - 1)

    def redraw(self, rng: Random) -> None:
        """Give the user another task."""
        self.index = rng.randrange(_LIMIT)

    @property
    def task(self) -> Task:
        """The task of this episode."""
        return generated(self.index, self.shape)

    def _instructions(self) -> str:
        refusing = f' If an order shows that the policy forbids a wish, say "{REFUSAL}".'
        if not self.shape.brief:
            return f"{prompt(self.domain, self.tool_names)}\n\n{refusing.strip()}"
        tools = "; ".join(f"{n}({', '.join(TOOLS[n].parameters)})" for n in self.tool_names)
        refusals = refusing if "refuse" in self.shape.intents else ""
        return _BRIEF.format(refusals=refusals, tools=tools)

    def step(self, action: str) -> Step:
        """Play one turn; see `Retail`."""
        observation, reward, terminated, truncated, info = super().step(action)
        info["first_call"] = self._first_call or 0.0
        reward = (1 - self.first_call_reward) * reward
        if self._first_call is not None and not self._paid:
            self._paid = True
            reward += self.first_call_reward * self._first_call
        return observation, reward, terminated, truncated, info

    def credited(self, message: str) -> set[str]:
        """Return what a message says of what must be said.

        A refusal counts once the agent has found the customer and read an order of theirs: nothing
        else shows that the policy forbids the wish.
        """
        said = super().credited(message)
        orders = database()["users"][self.gold.user_id]["orders"]
        looked = {Call(_READ, {"order_id": order}).key for order in orders}
        if self.identified != self.gold.user_id or looked.isdisjoint(self.tried):
            said.discard(REFUSAL)
        return said

    def _called(self, wanted: Call, error: str | None) -> tuple[str, bool]:
        if self._first_call is None:
            right, known = search(self.scene), error is None and wanted.name in self.tool_names
            self._first_call = 0.25 * known
            if wanted.name == right.name:
                self._first_call = 1.0 if wanted.key == right.key else 0.5
        return super()._called(wanted, error)


def _share(name: str, value: Any) -> float:
    if not 0 <= number(name, value) <= 1:
        raise ConfigurationError(f"{name} must be a number from 0 to 1, got {value!r}")
    return float(value)


def _needed(intents: Sequence[str]) -> tuple[str, ...]:
    """Return the tools that wishes need, in the order of `TOOLS`."""
    needed = {*_SEARCHES, _READ, TRANSFER}
    needed |= {_WRITES[kind] for kind in intents if kind in _WRITES}
    if any("payment_method_id" in TOOLS[name].parameters for name in needed):
        needed.add("get_user_details")
    if any("new_item_ids" in TOOLS[name].parameters for name in needed):
        needed.add("get_product_details")
    return tuple(name for name in TOOLS if name in needed)
