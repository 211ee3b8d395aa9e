"""Makes the text of a trace's prompts.

The rule of this module: equal block ids give equal text, and a prompt of n tokens is n words of three
letters, each followed by a space: exactly n tokens where a token is four bytes, and about n under a real
tokenizer.
"""

import hashlib
from collections import OrderedDict

import numpy as np

from loadtest.traces.types import TraceRequest

BYTES_PER_TOKEN = 4
CACHED_BLOCKS = 4_096
"""Blocks whose text is kept: 8 MiB of Mooncake's, 300 median prompts' worth."""

WORDS = (
    "ace act add ado age ago aid aim air ale all and ant any ape apt arc are ark arm art ash ask ate "
    "awe axe bad bag ban bar bat bay bed bee beg bet bid big bin bit bog bow box boy bud bug bun bus "
    "but buy cab can cap car cat cod cog cop cot cow cry cub cue cup cut dad day den dew did die dig "
    "dim dip dog dot dry due dug ear eat ebb egg ego elf elk elm end era eve eye fan far fat fed fee "
    "few fig fin fir fit fix fly foe fog for fox fun fur gap gas gem get gin got gum gun gut guy gym "
    "had ham has hat hay hen her hey hid him hip his hit hog hop hot how hub hue hug hut ice icy ill "
    "ink inn ion its ivy jam jar jaw jet job jog joy jug key kid kin kit lab lad lap law lay led leg "
    "let lid lie lip lit log lot low mad man map mat may men met mid mix mob mom mud mug nap net new "
    "nod nor not now nut oak oar odd off oil old one opt orb our out owe owl own pad pan par pat pay "
    "pea peg pen pet pie pig pin pit pop pot pro put ram ran rat raw ray red rib rid rim rip rob rod "
    "row rub rug run rye sad saw sea set she shy sip sir sit six ski "
)
"""256 words and their spaces: one token for every value of a byte."""

_TOKENS = np.frombuffer(WORDS.encode(), dtype=f"S{BYTES_PER_TOKEN}")


class PromptBuilder:
    """Prompts of one seed; blocks that several prompts share are made once and kept while in use."""

    def __init__(self, seed: int, *, cached_blocks: int = CACHED_BLOCKS) -> None:
        self._seed = seed
        self._cached_blocks = cached_blocks
        self._texts: OrderedDict[tuple[int, int], str] = OrderedDict()

    def text(self, request: TraceRequest) -> str:
        """The prompt: `input_tokens` words, the last followed by a space as well.

        Where the trace has fewer block ids than the length asks for, the rest is the request's own.
        """
        size = request.block_tokens
        shared = request.hash_ids[: -(-request.input_tokens // size)]
        blocks = [self._block(block_id, size) for block_id in shared]
        own_tokens = request.input_tokens - len(shared) * size
        if own_tokens > 0:
            blocks.append(self._words(f"request {request.index}", own_tokens))
        return "".join(blocks)[: request.input_tokens * BYTES_PER_TOKEN]

    def _block(self, block_id: int, tokens: int) -> str:
        key = (block_id, tokens)
        if key in self._texts:
            self._texts.move_to_end(key)
            return self._texts[key]
        text = self._texts[key] = self._words(f"block {block_id}", tokens)
        if len(self._texts) > self._cached_blocks:
            self._texts.popitem(last=False)
        return text

    def _words(self, name: str, tokens: int) -> str:
        noise = hashlib.shake_128(f"{self._seed} {name}".encode()).digest(tokens)
        return _TOKENS[np.frombuffer(noise, dtype=np.uint8)].tobytes().decode("ascii")
