"""Text with choices: `[a|b]` becomes a or b, `{name}` a value."""

import random
import re

INNERMOST = re.compile(r"\[([^\[\]]*)\]")


def expand(text: str, chooser: random.Random, values: dict | None = None) -> str:
    """One of the texts that a pattern stands for."""
    while "[" in text:
        text = INNERMOST.sub(lambda found: chooser.choice(found[1].split("|")), text)
    return text.format_map(values) if values and "{" in text else text
