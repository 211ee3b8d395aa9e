"""How a prompt goes on with an earlier one of its session.

The rule of this module: only the prompts' characters are looked at; nobody says which speaker a prompt is of.
"""

CONTINUES_RATIO = 0.5
"""A prompt that keeps less of an earlier one begins a conversation of its own."""


def common_prefix(one: str, other: str) -> int:
    """Length of the longest common prefix, in characters.

    Found by halving, since comparing slices costs far less than comparing characters one by one.
    """
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
