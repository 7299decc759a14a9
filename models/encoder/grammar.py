"""Makes sentences: meanings drawn from the word lists, each said in several ways.

A *meaning* is who does what to what, where, when, how and why, with the things' qualities. `say` puts one into words; two
calls on the same meaning give paraphrases that may share no word. `other` changes a part of a meaning, which gives
sentences that share words and not what they say.
"""

import copy
import random
from dataclasses import dataclass, field
from pathlib import Path

from words import compared, conjugate, gerund, participle, past, plural, third_person, with_article

HERE = Path(__file__).parent

NAMES = """anna tom maria peter lisa john emma paul sara david julia mark laura daniel eva max nina leo clara felix ida oscar sofia
hugo mia jack alice henry lucy sam kate robin omar amir yuki chen ravi priya fatima hassan olga ivan carlos elena diego
lucia marco giulia pierre marie lars ingrid""".split()
SYLLABLES = """ba be bo da de do fa fi ga go ha he hi ja jo ka ke ki ko la le li lo lu ma me mi mo na ne ni no pa pe po ra re ri ro ru
sa se si so ta te ti to va ve vi vo wa we za zo bra dri fel gan hul kor lin mar nor pal quin rud sten tor ul ver wil yan zel th sh
ing er on an en ar or al is us in el et il ion ment ness able ful less""".split()

# Words that say little: they may stand anywhere and change no meaning.
FILLERS = """already actually extremely really simply mostly only just even still almost perhaps maybe again also too quite rather indeed
certainly probably usually finally anyway together now then there here again well obviously clearly apparently fortunately
unfortunately of-course in-fact by-the-way after-all at-last at-least as-usual""".split()
FILLERS = [filler.replace("-", " ") for filler in FILLERS]
FRAMES = ["i think that {}", "everyone knows that {}", "it is true that {}", "people say that {}", "did you know that {}?", "he told me that {}",
          "she said that {}", "i heard that {}", "it seems that {}", "we noticed that {}", "they believe that {}", "once {}", "so {}", "but {}"]
PRONOUNS = ["he", "she", "they", "we", "i", "somebody", "someone", "you"]


@dataclass(frozen=True)
class Noun:
    kind: str
    forms: tuple
    number: str  # one, mass, many or name


@dataclass(frozen=True)
class Verb:
    forms: tuple
    subjects: tuple
    objects: tuple  # empty: nothing follows


@dataclass(frozen=True)
class Quality:
    forms: tuple
    opposite: tuple
    kinds: tuple = ()

    def turned(self):
        return Quality(self.opposite, self.forms, self.kinds)


@dataclass
class Meaning:
    """A clause. `form` is one of event, quality, comparison, place, word or situation."""

    form: str
    subject: Noun | str | None = None
    verb: Verb | None = None
    object: Noun | None = None
    of_subject: Quality | None = None
    of_object: Quality | None = None
    place: Noun | None = None
    time: tuple | None = None
    manner: Quality | None = None
    reason: tuple | None = None
    mood: str = "fact"
    then: "Meaning | None" = None
    group: int = -1
    slots: dict = field(default_factory=dict)

    def key(self) -> str:
        """Equal for equal meanings."""
        return repr(self)


def _lines(name):
    for line in (HERE / name).read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()


def _forms(text):
    return tuple(form.strip() for form in text.split("|") if form.strip())


class Lexicon:
    """The word lists."""

    def __init__(self):
        self.nouns, self.general = {}, {}
        for line in _lines("nouns.txt"):
            if line.startswith("["):
                kind, _, general = line.strip("[]").partition(":")
                self.nouns[kind], self.general[kind] = [], _forms(general)
                continue
            number = {"~": "mass", "+": "many", "^": "name"}.get(line[0], "one")
            self.nouns[kind].append(Noun(kind, _forms(line.lstrip("~+^")), number))
        self.kinds_of, self.verbs = {kind: (kind,) for kind in self.nouns}, []
        for line in _lines("verbs.txt"):
            if line.startswith("="):
                group, _, kinds = line[1:].partition(":")
                self.kinds_of[group.strip()] = tuple(kinds.split())
                continue
            forms, _, frame = line.partition(":")
            subjects, _, objects = frame.partition(">")
            expand = lambda text: tuple(kind for group in text.split() if group != "-" for kind in self.kinds_of[group])
            self.verbs.append(Verb(_forms(forms), expand(subjects), expand(objects)))
        lists = {"adjective": [], "manner": [], "time": [], "reason": []}
        for line in _lines("qualities.txt"):
            if line.startswith("["):
                current = lists[line.strip("[]")]
                continue
            forms, _, kinds = line.partition(":")
            one, _, opposite = forms.partition("<>")
            expanded = tuple(kind for group in kinds.split() for kind in self.kinds_of[group])
            current.append(Quality(_forms(one), _forms(opposite), expanded) if opposite else _forms(one))
        self.adjectives, self.manners, self.times, self.reasons = lists.values()
        self.adjectives += [quality.turned() for quality in self.adjectives]
        self.manners += [quality.turned() for quality in self.manners]
        self.adjectives_of = {kind: [q for q in self.adjectives if kind in q.kinds] for kind in self.nouns}
        self.situations = [_forms(line) for line in _lines("situations.txt")]
        self.all_nouns = [noun for nouns in self.nouns.values() for noun in nouns]
        self.synonyms = self._synonyms()

    def _synonyms(self):
        """For each word that has one meaning only: the words that may replace it in any sentence."""
        sets = [(tuple(map(form, words)), kind) for kind, groups in (
            ((str, plural), [noun.forms for noun in self.all_nouns if noun.number == "one"]),
            ((str,), [noun.forms for noun in self.all_nouns if noun.number != "one"]),
            ((str, past, gerund, third_person, participle), [verb.forms for verb in self.verbs]),
            ((str,), [quality.forms for quality in self.adjectives + self.manners]),
        ) for form in kind for words in [[w for w in forms if " " not in w] for forms in groups] if len(words) > 1]
        found = {}
        for words, _ in sets:
            for word in words:
                found.setdefault(word, set()).add(words)
        return {word: [other for other in next(iter(groups)) if other != word] for word, groups in found.items() if len(groups) == 1}


LEXICON = Lexicon()

MOODS = ["fact"] * 14 + ["now"] * 6 + ["will"] * 3 + ["want"] * 3 + ["must"] * 2 + ["can"] * 2 + ["not"] * 3 + ["how"] * 3 + ["do"] * 2


COUNTS = ["many ", "two ", "three ", "four ", "five ", "ten ", "several ", "a few ", "these ", "those ", "all "]
CLOSE_MOODS = ["fact", "fact", "fact", "now", "will", "can", "must", "want"]


class Speaker:
    """Draws meanings and says them, from one seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.said = set()
        self.avoid = set()

    # Meanings

    def chance(self, share):
        return self.random.random() < share

    def pick(self, items):
        return self.random.choice(items)

    def word(self, forms):
        """One of the forms; one that the paraphrase has not used yet, as far as there is one."""
        fresh = [form for form in forms if form not in self.avoid]
        form = self.pick(fresh or forms)
        self.said.add(form)
        return form

    def noun(self, kinds):
        return self.pick(LEXICON.nouns[self.pick(kinds)])

    def subject(self, kinds):
        if "person" in kinds and self.chance(0.35):
            if self.chance(0.3):
                return "".join(self.pick(SYLLABLES) for _ in range(self.random.randint(2, 3)))
            return self.pick(NAMES + ["i", "he", "she", "we", "they"] * 6)
        return self.noun(kinds)

    def quality_of(self, noun):
        choices = LEXICON.adjectives_of[noun.kind] if isinstance(noun, Noun) else []
        return self.pick(choices) if choices else None

    def meaning(self):
        """A fresh meaning of any form."""
        form = self.random.choices(["event", "quality", "comparison", "place", "word", "situation"], [52, 12, 4, 5, 5, 22])[0]
        made = getattr(self, "_" + form)()
        if form in ("event", "quality", "situation") and made.mood == "fact" and self.chance(0.12):
            made.then = self._event(plain=True)
        return made

    def _event(self, plain=False):
        verb = self.pick(LEXICON.verbs)
        made = Meaning("event", self.subject(verb.subjects), verb, self.noun(verb.objects) if verb.objects else None)
        if plain:
            return made
        made.mood = self.pick(MOODS)
        if self.chance(0.2):
            made.of_subject = self.quality_of(made.subject)
        if self.chance(0.3) and made.object:
            made.of_object = self.quality_of(made.object)
        if self.chance(0.25) and "place" not in verb.objects:
            made.place = self.noun(("place",))
        if self.chance(0.25):
            made.time = self.pick(LEXICON.times)
        if self.chance(0.12):
            made.manner = self.pick(LEXICON.manners)
        if self.chance(0.1):
            made.reason = self.pick(LEXICON.reasons)
        return made

    def _quality(self):
        quality = self.pick(LEXICON.adjectives)
        made = Meaning("quality", self.noun(quality.kinds), of_subject=quality)
        if "person" in quality.kinds and self.chance(0.25):
            made.subject = self.subject(("person",))
        if self.chance(0.2):
            made.place = self.noun(("place",))
        if self.chance(0.15):
            made.time = self.pick(LEXICON.times)
        return made

    def _comparison(self):
        quality = self.pick([quality for quality in LEXICON.adjectives if not quality.forms[0].startswith("not ")])
        kind = self.pick(quality.kinds)
        return Meaning("comparison", self.noun((kind,)), object=self.noun((kind,)), of_subject=quality)

    def _place(self):
        noun = self.noun(tuple(kind for kind in LEXICON.nouns if kind not in ("place", "city", "land", "feeling", "school", "body")))
        made = Meaning("place", noun, place=self.noun(("place",)))
        if self.chance(0.3):
            made.of_subject = self.quality_of(noun)
        return made

    def _word(self):
        made = Meaning("word")
        kind = self.random.random()
        if kind < 0.6:
            made.subject = self.pick(LEXICON.all_nouns)
        elif kind < 0.8:
            made.verb = self.pick(LEXICON.verbs)
        else:
            made.of_subject = self.pick(LEXICON.adjectives + LEXICON.manners)
        return made

    def _situation(self):
        group = self.random.randrange(len(LEXICON.situations))
        made = Meaning("situation", group=group)
        for kind in LEXICON.nouns:
            if any("{%s}" % kind in line for line in LEXICON.situations[group]):
                made.slots[kind] = self.noun((kind,))
        if self.chance(0.15):
            made.time = self.pick(LEXICON.times)
        if any("{who}" in line for line in LEXICON.situations[group]):
            made.slots["who"] = self.subject(("person",))
            if made.slots["who"] in ("we", "they"):
                made.slots["who"] = "he"
        return made

    def other(self, meaning):
        """A different meaning that keeps a part of this one."""
        made = copy.copy(meaning)
        made.slots = dict(meaning.slots)
        if made.form == "event":
            change = self.pick(["verb", "subject", "object", "verb object", "verb object", "quality", "mood", "verb subject"])
            if "verb" in change:
                fitting = [verb for verb in LEXICON.verbs if self._kind(made.subject) in verb.subjects and verb is not meaning.verb]
                if "object" not in change and made.object:
                    fitting = [verb for verb in fitting if made.object.kind in verb.objects] or fitting
                made.verb = self.pick(fitting or LEXICON.verbs)
                if not made.verb.objects:
                    made.object = made.of_object = None
                elif not made.object or made.object.kind not in made.verb.objects or "object" in change:
                    made.object, made.of_object = self.noun(made.verb.objects), None
            elif "object" in change and made.object:
                made.object, made.of_object = self.noun(made.verb.objects), None
            if "subject" in change:
                made.subject, made.of_subject = self.subject(made.verb.subjects), None
            if change == "quality" and (made.of_object or made.of_subject or made.manner):
                made.of_object = made.of_object and made.of_object.turned()
                made.of_subject = made.of_subject and made.of_subject.turned()
                made.manner = made.manner and made.manner.turned()
            elif change == "mood" and made.mood in ("fact", "now", "will", "not"):
                made.mood = "fact" if made.mood == "not" else "not"
            elif change in ("quality", "mood"):
                made.subject, made.of_subject = self.subject(made.verb.subjects), None
                made.object, made.of_object = (self.noun(made.verb.objects) if made.verb.objects else None), None
            if self.chance(0.4):
                made.then = made.reason = made.place = None
        elif made.form == "quality":
            if self.chance(0.5):
                made.of_subject = made.of_subject.turned()
            elif self.chance(0.5) or not isinstance(made.subject, Noun):
                made.subject = self.noun(made.of_subject.kinds)
            else:
                made.of_subject = self.quality_of(made.subject)
        elif made.form == "comparison":
            if self.chance(0.5):
                made.of_subject = made.of_subject.turned()
            else:
                made.object = self.noun((made.object.kind,))
        elif made.form == "place":
            if self.chance(0.5):
                made.place, made.of_subject = self.noun(("place",)), None
            else:
                made.subject, made.of_subject = self.noun((made.subject.kind,)), None
        elif made.form == "word":
            if made.subject:
                made.subject = self.noun((made.subject.kind,))
            elif made.of_subject:
                made.of_subject = made.of_subject.turned()
            else:
                made.verb = self.pick(LEXICON.verbs)
        else:
            near = meaning.group + self.pick([-3, -2, -1, 1, 2, 3, self.random.randrange(len(LEXICON.situations))])
            fresh = self._situation()
            fresh.then, fresh.time = made.then, made.time
            fresh.group = near % len(LEXICON.situations)
            lines = LEXICON.situations[fresh.group]
            fresh.slots = {k: made.slots.get(k) or self.noun((k,)) for k in LEXICON.nouns if any("{%s}" % k in line for line in lines)}
            if any("{who}" in line for line in lines):
                fresh.slots["who"] = made.slots.get("who") or self.subject(("person",))
            made = fresh
        return made

    def _kind(self, noun):
        return noun.kind if isinstance(noun, Noun) else "person"

    # Words

    def say(self, meaning, complete=True):
        """The meaning in words. What is not `complete` may leave out details and name things in general terms."""
        if not complete:
            meaning = copy.copy(meaning)
            for detail in ("of_subject", "of_object", "place", "time", "manner", "reason", "then"):
                keep = meaning.form in ("quality", "comparison", "place") and detail in ("of_subject", "place") or meaning.form == "word"
                if not keep and self.chance(0.25):
                    setattr(meaning, detail, None)
            if meaning.form == "event" and meaning.mood in CLOSE_MOODS and self.chance(0.25):
                meaning.mood = self.pick(CLOSE_MOODS)
            if self.chance(0.2) and meaning.form in ("event", "quality") and self._kind(meaning.subject) == "person":
                meaning.subject, meaning.of_subject = self.pick(PRONOUNS), meaning.of_subject if meaning.form == "quality" else None
        text = getattr(self, "_say_" + meaning.form)(meaning, complete)
        if meaning.then:
            second = self._clause(meaning.then, complete)
            text = self.pick([f"{text}, and then {second}", f"{text} before {second}", f"after {text}, {second}", f"{text} and {second}",
                              f"{text}. later {second}", f"first {text}, later {second}"])
        if meaning.form != "word" and self.chance(0.06) and not text.endswith("?"):
            text = self.pick(FRAMES).format(text)
        return text + self.pick(["", ".", ".", "!"] if not text.endswith("?") else [""])

    def thing(self, noun, quality=None, complete=True, bare=False):
        """A noun phrase."""
        if isinstance(noun, str):
            return noun
        general = LEXICON.general[noun.kind]
        if not complete and not bare and noun.number == "one" and general and self.chance(0.07):
            return self.pick(["the ", "this "]) + self.word(general) if not quality else with_article(self.word(general))
        form = self.word(noun.forms)
        if noun.number == "name":
            return form
        fixed = form.startswith(("a ", "the "))
        quality = self.word(quality.forms) if quality else None
        before = quality if quality and " " not in quality else None
        several = noun.number == "many" or (noun.number == "one" and self.chance(0.12))
        if noun.number == "one" and several and not fixed:
            form = plural(form)
        named = f"{before} {form}" if before and not fixed else form
        if fixed:
            phrase = named
        elif several or noun.number == "mass":
            phrase = self.pick(["", "the ", "some ", "my ", "your ", "their ", *(COUNTS if several else ["a lot of ", "this ", "much "])]) + named
        else:
            phrase = self.pick(["the " + named] * 5 + [with_article(named)] * 4 + ["my " + named, "his " + named, "her " + named, "this " + named,
                                                                                   "one " + named, "our " + named, "that " + named, "every " + named])
        if quality and (not before or fixed):
            phrase += (" who " if noun.kind == "person" else " that ") + ("are " if several else "was ") + quality
        return phrase

    def where(self, noun):
        front = "on" if noun.forms[0] in ("island", "mountain", "hill", "street", "beach", "highway", "bridge", "farm", "moon") else "in"
        return self.pick([front, front, "at", "near", "inside" if front == "in" else "on"]) + " the " + self.word(noun.forms)

    def _extras(self, meaning):
        return [part for part in (
            meaning.manner and self.word(meaning.manner.forms),
            meaning.place and self.where(meaning.place),
            meaning.time and self.word(meaning.time),
            meaning.reason and self.word(meaning.reason),
        ) if part]

    def _clause(self, meaning, complete):
        who = self.thing(meaning.subject, None, complete)
        what = self.thing(meaning.object, None, complete) if meaning.object else ""
        return f"{who} {conjugate(self.word(meaning.verb.forms), 'past')} {what}".strip()

    def _say_event(self, meaning, complete):
        who = self.thing(meaning.subject, meaning.of_subject, complete)
        what = self.thing(meaning.object, meaning.of_object, complete) if meaning.object else ""
        verb = self.word(meaning.verb.forms)
        extras = self._extras(meaning)
        self.random.shuffle(extras)
        front = extras.pop() + self.pick([", ", " "]) if extras and self.chance(0.3) and meaning.mood not in ("how", "do") else ""
        end = " ".join([what, *extras]).strip()
        tense = lambda name: conjugate(verb, name)
        several = who in ("i", "we", "they")
        passive = bool(what) and verb.split()[0] not in ("be", "have", "get", "cannot", "no", "not", "come", "suffer", "like", "fail", "live")
        body = {
            "fact": lambda: self.pick(
                [f"{who} {tense('past')} {end}"] * 4
                + [f"{who} has {tense('participle')} {end}", f"it was {who} who {tense('past')} {end}"]
                + ([f"{what} was {tense('participle')} by {who} {' '.join(extras)}"] * 3 if passive else [])
                + ([f"{what} that {who} {tense('past')} {' '.join(extras)}"] if passive else [])),
            "now": lambda: self.pick(
                [f"{who} {'are' if several else 'is'} {tense('gerund')} {end}", f"{who} {tense('gerund')} {end}",
                 f"{who} {tense('base') if several else tense('present')} {end}",
                 f"{who} {'are' if several else 'is'} busy {tense('gerund')} {end}"]
                + ([f"{what} is being {tense('participle')} by {who} {' '.join(extras)}"] if passive else [])),
            "will": lambda: self.pick(
                [f"{who} will {tense('base')} {end}", f"{who} is going to {tense('base')} {end}", f"{who} is about to {tense('base')} {end}",
                 f"soon {who} will {tense('base')} {end}"]),
            "want": lambda: self.pick(
                [f"{who} wants to {tense('base')} {end}", f"{who} would like to {tense('base')} {end}", f"{who} hopes to {tense('base')} {end}",
                 f"{who} wishes to {tense('base')} {end}", f"{who} plans to {tense('base')} {end}", f"{who} intends to {tense('base')} {end}"]),
            "must": lambda: self.pick(
                [f"{who} must {tense('base')} {end}", f"{who} has to {tense('base')} {end}", f"{who} needs to {tense('base')} {end}",
                 f"{who} should {tense('base')} {end}", f"it is necessary for {who} to {tense('base')} {end}"]),
            "can": lambda: self.pick(
                [f"{who} can {tense('base')} {end}", f"{who} is able to {tense('base')} {end}", f"{who} knows how to {tense('base')} {end}",
                 f"{who} managed to {tense('base')} {end}", f"it is possible for {who} to {tense('base')} {end}"]),
            "not": lambda: self.pick(
                [f"{who} did not {tense('base')} {end}", f"{who} never {tense('past')} {end}", f"{who} failed to {tense('base')} {end}",
                 f"{who} does not {tense('base')} {end}", f"{who} has not {tense('participle')} {end}", f"{who} refused to {tense('base')} {end}"]),
            "how": lambda: self.pick(
                [f"how do i {tense('base')} {end}?", f"how can i {tense('base')} {end}?", f"what is the best way to {tense('base')} {end}?",
                 f"i want to know how to {tense('base')} {end}", f"tips for {tense('gerund')} {end}", f"how to {tense('base')} {end}",
                 f"instructions for {tense('gerund')} {end}", f"what must i do to {tense('base')} {end}?"]),
            "do": lambda: self.pick(
                [f"please {tense('base')} {end}", f"{tense('base')} {end}", f"you should {tense('base')} {end}",
                 f"could you {tense('base')} {end}?", f"let us {tense('base')} {end}", f"do not forget to {tense('base')} {end}"]),
        }[meaning.mood]()
        return " ".join((front + body).split())

    def _say_quality(self, meaning, complete):
        quality, opposite = self.word(meaning.of_subject.forms), self.word(meaning.of_subject.opposite)
        who = self.thing(meaning.subject, None, True)
        verb = {"i": "am", "we": "are", "they": "are"}.get(who, "is")
        ways = [f"{who} {verb} {quality}"] * 3 + [f"{who} {verb} very {quality}", f"{who} {verb} not {opposite}", f"{who} {verb} anything but {opposite}",
                f"{who} seems {quality}", f"how {quality} {who} {verb}", f"i think that {who} {verb} {quality}",
                f"{who} {verb} really {quality}", f"{who} was {quality}", f"everyone knows that {who} {verb} {quality}"]
        if isinstance(meaning.subject, Noun):
            ways += [self.thing(meaning.subject, meaning.of_subject, True), "there is " + self.thing(meaning.subject, meaning.of_subject, True)] * 2
        return " ".join([self.pick(ways), *self._extras(meaning)])

    def _say_comparison(self, meaning, complete):
        one, two = self.thing(meaning.subject, None, complete), self.thing(meaning.object, None, complete)
        quality, opposite = self.word(meaning.of_subject.forms), self.word(meaning.of_subject.opposite)
        return self.pick([f"{one} is {compared(quality, 'er')} than {two}"] * 3 + [
            f"{two} is {compared(opposite, 'er')} than {one}", f"{two} is not as {quality} as {one}", f"{two} is less {quality} than {one}",
            f"compared with {two}, {one} is {quality}", f"of {two} and {one}, the {compared(quality, 'est')} is {one}"])

    def _say_place(self, meaning, complete):
        what, where = self.thing(meaning.subject, meaning.of_subject, complete), self.where(meaning.place)
        return self.pick([f"there is {what} {where}", f"{what} is {where}", f"{where} there is {what}", f"one can find {what} {where}",
                          f"{what} {where}", f"{what} can be found {where}", f"{where} you will see {what}"])

    def _say_word(self, meaning, complete):
        if meaning.subject:
            return self.thing(meaning.subject, None, True) if self.chance(0.4) else self.word(meaning.subject.forms)
        if meaning.of_subject:
            return self.pick(["", "", "very "]) + self.word(meaning.of_subject.forms)
        return self.pick(["to ", "", ""]) + conjugate(self.word(meaning.verb.forms), self.pick(["base", "past", "gerund"]))

    def _say_situation(self, meaning, complete):
        text = self.word(LEXICON.situations[meaning.group])
        for kind, noun in meaning.slots.items():
            slot = "{%s}" % kind
            if slot not in text:
                continue
            if kind == "who":
                word = noun if isinstance(noun, str) else self.pick(["the ", "my ", "our "]) + self.word(noun.forms)
            elif kind == "person":
                bare = any(before + slot in text for before in ("the ", "a "))
                word = self.word(noun.forms) if bare else "the " + self.word(noun.forms)
            else:
                word = self.word(noun.forms)
                word = word.removeprefix("a ") if noun.number != "name" else word
            text = text.replace(slot, word)
        words = [self.word(LEXICON.synonyms[word]) if word in LEXICON.synonyms and self.chance(0.25) else word for word in text.split()]
        return " ".join(words + self._extras(meaning))


OTHERS = 3


def with_filler(text, filler, place):
    """The text with a word that says nothing put into it."""
    words = text.split()
    at = int(place * len(words))
    return " ".join([*words[:at], filler, *words[at:]])


def example(speaker):
    """(key of the meaning, a sentence, a paraphrase, sentences that share a part of the meaning and say something else)."""
    meaning = speaker.meaning()
    others = [speaker.other(meaning) for _ in range(OTHERS)]
    speaker.said, speaker.avoid = set(), set()
    anchor = speaker.say(meaning)
    if speaker.chance(0.85):
        speaker.avoid = set(speaker.said)
    paraphrase = speaker.say(meaning, complete=False)
    speaker.avoid = set()
    texts = [anchor, paraphrase, *map(speaker.say, others)]
    if meaning.form != "word" and speaker.chance(0.2):
        filler, place = speaker.pick(FILLERS), speaker.random.random()
        texts = [text if number == 1 else with_filler(text, filler, place) for number, text in enumerate(texts)]
    return meaning.key(), *texts
