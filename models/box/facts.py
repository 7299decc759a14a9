"""Questions and answers about the project, from facts.txt, asked in many ways."""

import random
import re
from dataclasses import dataclass, field
from pathlib import Path

from choices import expand

HERE = Path(__file__).parent

# How one asks for a thing by its name.
GENERAL = [
    "What is {t}?", "What is {t}?", "What does {t} do?", "What does {t} mean?", "What is {t} for?", "What is {t} used for?", "Explain {t}.",
    "Please explain {t}.", "Can you explain {t}?", "Tell me about {t}.", "Tell me something about {t}.", "What do you know about {t}?", "Describe {t}.",
    "I do not understand {t}.", "I want to know what {t} is.", "Give me a short explanation of {t}.", "How does {t} work?", "When do I need {t}?",
    "What can you say about {t}?", "{t}?", "{t}", "What about {t}?", "Why is there {t}?", "Do you know {t}?", "Have you heard of {t}?", "Define {t}.",
    "I would like to learn about {t}.", "What should I know about {t}?", "How would you explain {t}?",
]
# How "How do I run the tests?" is asked for in other ways.
DEEDS = [
    "How to {d}?", "I want to {d}.", "I want to {d}. How do I do that?", "I want to {d}. What do I do?", "I would like to {d}.", "I need to {d}.",
    "Tell me how to {d}.", "Show me how to {d}.", "Can you tell me how to {d}?", "Could you explain how to {d}?", "Do you know how to {d}?",
    "What is the way to {d}?", "What is the best way to {d}?", "What do I have to do to {d}?", "What must I do to {d}?", "Is there a way to {d}?",
    "Is it possible to {d}?", "How should I {d}?", "How could one {d}?", "How does one {d}?", "What do I type to {d}?", "Help me to {d}.",
    "I am trying to {d}.", "Please explain how I can {d}.", "What would I use to {d}?", "Where do I learn how to {d}?", "I do not know how to {d}.",
]
BEFORE = [""] * 14 + ["Quick question: ", "Question: ", "Tell me, ", "One more thing: ", "Sorry, ", "In max-rs, ", "Now, ", "And ", "Also, ", "Next question: "]
# Words that may replace each other in a question.
ALIKE = [line.split() for line in """make build create|show print display|which what|choose pick select|start run launch|load read open|change modify alter
need require|see find|want wish|write create|fast quick|GPU graphics-card|text words|get obtain|use employ|begin start|stop end|give pass|save store
file document|look-into inspect|find-out learn|large big|smallest tiniest|join combine|machine computer|code program|test check|speed performance""".replace(
    "\n", "|").split("|")]
REPLACE = {word: [other.replace("-", " ") for other in group if other != word] for group in ALIKE for word in group}


@dataclass
class Fact:
    names: list = field(default_factory=list)
    forms: list = field(default_factory=list)
    answer: str = ""


def _read():
    facts, current = [], Fact()
    for line in (HERE / "facts.txt").read_text().splitlines():
        mark, _, rest = line.partition(" ")
        if mark == "~":
            current.names += [name.strip() for name in rest.split("|")]
        elif mark == "?":
            current.forms.append(rest)
        elif mark == "=":
            current.answer = rest
            facts.append(current)
            current = Fact()
    return facts


FACTS = _read()


def _plain_question(fact: Fact, chooser: random.Random) -> str:
    if fact.names and (not fact.forms or chooser.random() < 0.4):
        asked = chooser.choice(GENERAL).format(t=chooser.choice(fact.names))
        return asked[:1].upper() + asked[1:] if chooser.random() < 0.8 else asked
    asked = " ".join(expand(chooser.choice(fact.forms), chooser).split())
    asked = re.sub(r" ([?.,])", r"\1", asked)
    deed = re.match(r"How (?:do|can|to)(?: I)? (.*)\?$", asked)
    if deed and chooser.random() < 0.5:
        asked = chooser.choice(DEEDS).format(d=deed[1])
    return asked


def question(fact: Fact, chooser: random.Random) -> str:
    """One of many ways to ask for a fact, sometimes as carelessly as people type."""
    asked = _plain_question(fact, chooser)
    if chooser.random() < 0.35:
        words = asked.split(" ")
        for place, word in enumerate(words):
            bare = word.strip("?.,")
            if bare in REPLACE and chooser.random() < 0.5:
                words[place] = word.replace(bare, chooser.choice(REPLACE[bare]))
        asked = " ".join(words)
    before = chooser.choice(BEFORE)
    if before:
        asked = before + (asked[:1].lower() + asked[1:] if not asked.startswith(("I ", "GGUF", "NCCL", "MAX", "Q", "F.", "DLPack")) else asked)
    if chooser.random() < 0.12:
        words = asked.split(" ")
        if len(words) > 4:
            del words[chooser.randrange(len(words) - 1)]
        asked = " ".join(words)
    if chooser.random() < 0.12:
        asked = asked.lower()
    if chooser.random() < 0.15:
        asked = asked.rstrip("?.")
    return asked


def fact(chooser: random.Random):
    """A question and its answer."""
    chosen = chooser.choice(FACTS)
    return question(chosen, chooser), chosen.answer
