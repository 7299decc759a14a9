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
    "What can you say about {t}?", "{t}?", "{t}", "What about {t}?", "Why is {t} there?", "Do you know {t}?", "Have you heard of {t}?", "Define {t}.",
    "I would like to learn about {t}.", "What should I know about {t}?", "How would you explain {t}?", "Why would I use {t}?", "Why would anyone want {t}?",
    "What do people mean by {t}?", "What is meant by {t}?", "What is the purpose of {t}?", "What is the point of {t}?", "What is the meaning of {t}?",
    "What is {t} good for?", "When is {t} useful?", "When would I use {t}?", "What use is {t}?", "Why do I need {t}?",
    "I have read about {t}. What is that?", "I saw {t} somewhere. What is it?", "Somebody mentioned {t}. What is that?", "I never understood {t}.",
    "I wonder what {t} is.", "I am curious about {t}.", "Could you describe {t} briefly?", "Say something about {t}.", "Say what {t} is.",
    "Give me some information about {t}.", "Give me the definition of {t}.", "Help me understand {t}.", "Teach me about {t}.", "Remind me what {t} is.",
    "What is {t} about?", "What exactly is {t}?", "What does one do with {t}?", "Is {t} important?", "Do I need {t}?", "{t} meaning",
    "{t} explanation", "explain {t} to a beginner",
    "In simple words, what is {t}?", "What does it mean when people say {t}?", "I do not know what {t} is.", "What role does {t} play?", "info on {t}",
]
# How one asks for a thing of a kind: what its name looks like, and further frames.
KINDS = [
    ("--", ["What does the flag {t} do?", "What happens if I pass {t}?", "What does the option {t} change?", "What do I set with {t}?", "When do I pass {t}?",
            "Which effect does {t} have?", "What is the option {t} for?"]),
    ("(max|cargo) ", ["What happens when I run {t}?", "When do I run {t}?", "What do I get from {t}?", "Why would I run {t}?"]),
    ("max-[a-z]", ["What is in {t}?", "What lives in {t}?", "What does the crate {t} contain?", "What is the job of {t}?", "Which code is in {t}?",
                   "What do I find in {t}?"]),
    ("MAX_", ["What happens when I set {t}?", "What does the variable {t} do?", "Why would I set {t}?", "What does the environment variable {t} change?"]),
    ("ops\\.|[a-z]+_[a-z_]+$", ["What does the function {t} compute?", "What does {t} return?", "When do I call {t}?", "What happens when I call {t}?"]),
]
# How "How do I run the tests?" is asked for in other ways.
DEEDS = [
    "How to {d}?", "I want to {d}.", "I want to {d}. How do I do that?", "I want to {d}. What do I do?", "I would like to {d}.", "I need to {d}.",
    "Tell me how to {d}.", "Show me how to {d}.", "Can you tell me how to {d}?", "Could you explain how to {d}?", "Do you know how to {d}?",
    "What is the way to {d}?", "What is the best way to {d}?", "What do I have to do to {d}?", "What must I do to {d}?", "Is there a way to {d}?",
    "Is it possible to {d}?", "How should I {d}?", "How could one {d}?", "How does one {d}?", "What do I type to {d}?", "Help me to {d}.",
    "I am trying to {d}.", "Please explain how I can {d}.", "What would I use to {d}?", "Where do I learn how to {d}?", "I do not know how to {d}.",
    "What does it take to {d}?", "Say how to {d}, please.", "What should I use to {d}?", "What is used to {d}?", "Is there something to {d} with?",
    "I wonder how to {d}.", "I wonder how one can {d}.", "I have to {d}. What now?", "I must {d}. What helps?", "What is needed to {d}?", "How might I {d}?",
    "My task is to {d}. How?", "Somebody asked me to {d}. How does that work?", "What is the easiest way to {d}?", "Which way is there to {d}?",
    "Can I {d}?", "Can one {d}?", "Am I able to {d}?", "Is it hard to {d}?", "Give me a way to {d}.", "Give me a hint how to {d}.", "Explain how to {d}.",
    "I cannot find out how to {d}.", "I forgot how to {d}.", "Remind me how to {d}.", "Suppose that I want to {d}. What then?",
    "If I want to {d}, what do I do?",
    "To {d}, what do I need?", "What lets me {d}?", "What allows me to {d}?", "Who can tell me how to {d}?", "{d}", "how {d}", "way to {d}",
    "We want to {d}. What do we do?", "How do we {d}?", "How do people {d}?", "How would I {d}?", "How am I supposed to {d}?", "What helps me to {d}?",
]
# How a deed is asked for in the passive voice: "How is the wheel built?"
PASSIVES = ["How {be} {thing} {done}{rest}?", "How can {thing} be {done}{rest}?", "Can {thing} be {done}{rest}?", "How does {thing} get {done}{rest}?",
            "I wonder how {thing} {be} {done}{rest}.", "Tell me how {thing} {be} {done}{rest}.", "In which way {be} {thing} {done}{rest}?"]
DEED = re.compile(r"How (?:(?:do|can) I|to) (.*)\?$")
# A deed as verb, object and rest; those whose object runs on, as in "pass the prompt as it is", are left alone.
OBJECT = re.compile(r"(?!(?:act|ask|find|get|leave|let|look|make|query|see|switch|turn) )([a-z]+) "
                    r"((?:an?|the|my|all|two|several|quantized) (?:(?!(?:again|and|as|it|many|that|twice|each|every|after)\b)[\w-]+ ?)+?)"
                    r"((?<= )(?:in|on|to|into|from|with|for|by|at|inside|until|when|while|without|along) .*)?$")
PARTICIPLES = dict(pair.split() for pair in """build built|make made|write written|run run|set set|get gotten|find found|choose chosen|see seen|give given
read read|put put|keep kept|begin begun|show shown|know known|take taken|tell told|do done|say said|stop stopped|swap swapped|map mapped|plan planned
hold held|feed fed|drop dropped|bring brought|embed embedded|debug debugged|output output|cut cut|plug plugged|send sent|defer deferred""".replace(
    "\n", "|").split("|"))
BEFORE = [""] * 20 + [
    "Quick question: ", "Question: ", "Tell me, ", "One more thing: ", "Sorry, ", "In max-rs, ", "Now, ", "And ", "Also, ", "Next question: ", "Hello, ",
    "Hi! ", "Please, ", "Excuse me, ", "So, ", "Okay, ", "Well, ", "By the way, ", "Another question: ", "With max-rs, ", "Please tell me: ", "Just curious: ",
    "Hey, "]
AFTER = [", please?", " exactly?", " in max-rs?", ", do you know?", " here?", ", can you tell me?", " in this project?", " in general?", " then?", "? Thanks!",
         "? Please answer briefly.", "? I am new to this.", "? I have no idea."]
# Words that may replace each other in a question.
ALIKE = [line.split() for line in """make build create|show print display|choose pick select|start run launch|load read open|change modify alter|need require
see find|want wish|write create|fast quick rapid|GPU graphics-card video-card|get obtain receive|use employ utilize|begin start|stop end halt|give pass hand
save store|look-into inspect examine|find-out learn discover|large big huge|largest biggest|smallest tiniest|join combine|machine computer
test check|speed performance|flag option switch|several multiple many|compute calculate|measure determine|folder directory|likely probable|variable setting
explain describe clarify|answer reply response|avoid prevent|error mistake|turn-off disable switch-off|turn-on enable switch-on|shows displays prints
makes builds creates|chooses picks selects|runs executes starts|gives returns|finds discovers|joins combines|stops ends|whole entire
kind sort|slow sluggish|small little|GPUs graphics-cards|limit restrict|way method|quickly fast|graph computation-graph""".replace(
    "\n", "|").split("|")]
REPLACE = {}
for group in ALIKE:
    for word in group:
        REPLACE.setdefault(word, []).extend(other.replace("-", " ") for other in group if other != word)
# Words that a question is understood without.
FILLERS = set("""how do does did i is are was be the a an of to can could would should it its my me in on at and that this there what which when one some please
so for tell know want with by us we any will has have must also then now just about""".split())
NAMES = {"I", "Python", "Rust", "Llama", "Jinja", "Perfetto", "Qwen", "Gemma", "Ctrl"}


@dataclass
class Fact:
    names: list = field(default_factory=list)
    forms: list = field(default_factory=list)
    answer: str = ""
    # The words of its names, which noise leaves alone.
    kept: set = field(default_factory=set)


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
            current.kept = {word.lower() for name in current.names for word in name.split()} - FILLERS
            facts.append(current)
            current = Fact()
    return facts


FACTS = _read()


def _by_name(fact: Fact, chooser: random.Random) -> str:
    name = chooser.choice(fact.names)
    frames = GENERAL
    if chooser.random() < 0.3:
        frames = next((frames for looks, frames in KINDS if re.match(looks, name)), GENERAL)
    asked = chooser.choice(frames)
    if re.fullmatch(r"[A-Za-z ]*[^s]s", name) and name != "safetensors":
        asked = asked.replace(" is {t}", " are {t}").replace("does {t}", "do {t}").replace("{t} is", "{t} are").replace("Is {t}", "Are {t}")
    if "`" + name in fact.answer and chooser.random() < 0.15:
        name = f"`{name}`"
    asked = asked.format(t=name)
    return asked[:1].upper() + asked[1:] if chooser.random() < 0.8 else asked


def _participle(verb: str) -> str:
    if verb in PARTICIPLES:
        return PARTICIPLES[verb]
    if verb.endswith("e"):
        return verb + "d"
    return verb[:-1] + "ied" if verb[-1] == "y" and verb[-2] not in "aeo" else verb + "ed"


def _of_deed(deed: str, chooser: random.Random) -> str:
    """A deed, such as "run the tests", asked for in one of many ways."""
    found = OBJECT.match(deed) if chooser.random() < 0.2 else None
    if not found:
        return chooser.choice(DEEDS).format(d=deed)
    verb, thing, rest = (part.strip() for part in found.groups(""))
    many = re.search(r"[^s]s$", thing.split(" of ")[0])
    frames = [frame for frame in PASSIVES if not many or "does" not in frame]
    return chooser.choice(frames).format(be="are" if many else "is", thing=thing, done=_participle(verb), rest=rest and " " + rest)


def _plain_question(fact: Fact, chooser: random.Random) -> str:
    if fact.names and (not fact.forms or chooser.random() < 0.3):
        return _by_name(fact, chooser)
    asked = " ".join(expand(chooser.choice(fact.forms), chooser).split())
    asked = re.sub(r" ([?.,])(?!\w)", r"\1", asked)
    deed = DEED.match(asked)
    if deed and chooser.random() < 0.6:
        asked = _of_deed(deed[1], chooser)
    return asked


def _with_synonyms(asked: str, chooser: random.Random) -> str:
    words = asked.split(" ")
    for place, word in enumerate(words):
        bare = word.strip("?.,")
        if bare in REPLACE and chooser.random() < 0.4:
            words[place] = word.replace(bare, chooser.choice(REPLACE[bare]))
    return " ".join(words)


def _careless(asked: str, kept: set, chooser: random.Random) -> str:
    """A question with words left out or swapped, or with a slip of the finger; what names the fact stays."""
    words = asked.split(" ")
    bare = [word.strip("?.,!:").lower() for word in words]
    free = [place for place, word in enumerate(bare) if word not in kept and word.isalpha()]
    fillers = [place for place in free if bare[place] in FILLERS]
    form = chooser.random()
    if form < 0.2 and len(words) - len(fillers) >= 3:
        return " ".join(bare[place] for place in range(len(words)) if place not in fillers)
    if form < 0.6 and len(words) > 4 and len(fillers) > 1:
        dropped = chooser.sample(fillers, min(len(fillers), chooser.randint(1, 3)))
        if len(words) > 7 and chooser.random() < 0.15:
            dropped.append(chooser.choice(free))
        return " ".join(word for place, word in enumerate(words) if place not in dropped)
    if form < 0.75 and len(words) > 3:
        place = chooser.randrange(len(words) - 2)
        words[place], words[place + 1] = words[place + 1], words[place]
        return " ".join(words)
    long = [place for place in free if len(bare[place]) > 5]
    if long:
        place = chooser.choice(long)
        word, at = words[place], chooser.randrange(2, 5)
        words[place] = word[:at] + (word[at] + word[at:] if chooser.random() < 0.4 else word[at + 1 :])
    return " ".join(words)


def question(fact: Fact, chooser: random.Random) -> str:
    """One of many ways to ask for a fact, sometimes as carelessly as people type."""
    asked = _plain_question(fact, chooser)
    # Spaces divide code, and questions to the model itself consist of small words: both stay as they are.
    plain = "`" not in asked and "you" not in asked
    if plain and chooser.random() < 0.35:
        asked = _with_synonyms(asked, chooser)
    if plain and chooser.random() < 0.25:
        asked = _careless(asked, fact.kept, chooser)
    if plain and asked.endswith("?") and "max-rs" not in asked and chooser.random() < 0.08:
        asked = asked[:-1] + chooser.choice(AFTER)
    before = chooser.choice(BEFORE)
    if before and not ("max-rs" in before and "max-rs" in asked):
        first = asked.split(" ", 1)[0].strip("?.,'")
        lower = first.isalpha() and first.istitle() and first not in NAMES and first not in fact.names and not before.endswith("! ")
        asked = before + (asked[:1].lower() + asked[1:] if lower else asked)
    if chooser.random() < 0.12:
        asked = asked.lower()
    if chooser.random() < 0.15:
        asked = asked.rstrip("?.")
    return asked


def plain(text: str) -> str:
    """A text without capitals and punctuation."""
    return re.sub(r"[^a-z0-9+-]+", " ", text.lower()).strip()


HELD_OUT = {plain(line.split("\t")[0]) for line in (HERE / "questions.tsv").read_text().splitlines()}


def fact(chooser: random.Random):
    """A question and its answer; never one of `HELD_OUT`."""
    while True:
        chosen = chooser.choice(FACTS)
        asked = question(chosen, chooser)
        if plain(asked) not in HELD_OUT:
            return asked, chosen.answer
