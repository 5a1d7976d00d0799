"""Ids and parameters of the single-turn tasks; nothing is imported or loaded here."""

from __future__ import annotations

from typing import Any

_QA = "qa:QaEnv"


def _hub(name: str, sample: str, **more: Any) -> dict[str, Any]:
    return {"source": f"hub:axon-rl/{name}", "sample": sample, **more}


DATASETS: dict[str, tuple[str, dict[str, Any]]] = {
    "qa:NaturalQuestions": (_QA, _hub("NaturalQuestions", "qa")),
    "qa:HotpotQA": (_QA, _hub("HotpotQA", "qa")),
    **{
        f"logic:RuleTaker-d{depth}": (
            "qa:RuleTaker",
            _hub(f"RuleTaker-d{depth}-70k", f"ruletaker-d{depth}", split="train"),
        )
        for depth in (0, 1, 2, 3, 5)
    },
    **{
        f"eval:{name}": (_QA, _hub("search-eval", "qa", split=split, eval=True))
        for name, split in {
            "2Wiki": "2wiki",
            "PopQA": "popqa",
            "TriviaQA": "tq",
            "HotpotQA": "hotpotqa",
            "Bamboogle": "bamboogle",
            "NaturalQuestions": "nq",
            "Musique": "musique",
        }.items()
    },
    "eval:QaOpen": (
        _QA,
        {
            "source": "hub:google-research-datasets/nq_open",
            "split": "validation",
            "sample": "qa-open",
            "question_column": "question",
            "eval": True,
        },
    ),
}
"""Per id: module and class in this folder, and parameters."""

_NAMES = """
ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf
binary_alternation binary_matrix bitwise_arithmetic boxnet caesar_cipher calendar_arithmetic
chain_sum circuit_logic codeio coin_flip color_cube_rotation complex_arithmetic composite
count_bits count_primes countdown course_schedule cryptarithm decimal_arithmetic
decimal_chain_sum dice emoji_mystery family_relationships figlet_font fraction_simplification
futoshiki game_of_life game_of_life_halting gcd graph_color group_anagrams gsm_symbolic
intermediate_integration isomorphic_strings jugs kakurasu knight_swap knights_knaves
largest_island lcm leg_counting letter_counting letter_jumble list_functions mahjong_puzzle
manipulate_matrix maze mini_sudoku modulo_grid n_queens needle_haystack number_filtering
number_format number_sequence number_sorting palindrome_generation palindrome_partitioning
path_star polynomial_equations polynomial_multiplication pool_matrix power_function
prime_factorization products propositional_logic puzzle24 quantum_lock ransom_note rearc
rectangle_count rotate_matrix rotten_oranges rubiks_cube rush_hour self_reference
sentence_reordering shortest_path simple_equations simple_geometry simple_integration sokoban
spell_backward spiral_matrix string_insertion string_manipulation string_splitting
string_synthesis sudoku survo syllogism time_intervals tower_of_hanoi tsumego word_ladder
word_sequence_reversal word_sorting zebra_puzzles
"""
GENERATORS = tuple(_NAMES.split())
"""Generators of reasoning-gym 0.1.25; `coin_flip` and `path_star` are not in 0.1.23."""

CONFIGS: dict[str, dict[str, Any]] = {
    # It has no defaults of its own.
    "composite": {
        "datasets": [
            {"name": name, "weight": 1.0} for name in ("chain_sum", "letter_counting", "maze")
        ]
    },
    # Of strings with 5 to 20 letters, its defaults, 94 percent are to be left as they are.
    "string_insertion": {"min_string_length": 90, "max_string_length": 130},
}
"""Configuration of the ids that do not have the generator's own."""
