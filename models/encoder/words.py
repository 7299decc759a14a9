"""Forms of English words: tenses of verbs, plurals of nouns, articles."""

# base, past, participle where they are no regular forms
IRREGULAR = {
    base: (past, participle)
    for base, past, participle in (
        line.split()
        for line in """
        be was been|have had had|do did done|go went gone|get got got|buy bought bought|sell sold sold|eat ate eaten
        drink drank drunk|make made made|bring brought brought|put put put|take took taken|give gave given|hold held held
        lose lost lost|find found found|come came come|hide hid hidden|send sent sent|throw threw thrown|catch caught caught
        let let let|break broke broken|build built built|tear tore torn|shut shut shut|wear wore worn|drive drove driven
        sit sat sat|ride rode ridden|leave left left|shoot shot shot|draw drew drawn|teach taught taught|learn learned learned
        understand understood understood|forget forgot forgotten|know knew known|see saw seen|hear heard heard|keep kept kept
        tell told told|sing sang sung|read read read|write wrote written|win won won|beat beat beaten|fly flew flown
        run ran run|swim swam swum|sleep slept slept|lie lay lain|fall fell fallen|bite bit bitten|sink sank sunk|slay slew slain
        feed fed fed|meet met met|say said said|ring rang rung|speak spoke spoken|fight fought fought|strike struck struck
        hit hit hit|hurt hurt hurt|feel felt felt|think thought thought|dig dug dug|grow grew grown|choose chose chosen
        light lit lit|set set set|burst burst burst|blow blew blown|begin began begun|wake woke woken|awake awoke awoken
        weep wept wept|shed shed shed|stand stood stood|flee fled fled|quit quit quit|cut cut cut|pay paid paid|spend spent spent
        lend lent lent|seek sought sought|rise rose risen|steal stole stolen|swing swung swung|cast cast cast|show showed shown
        sew sewed sewn|fling flung flung|become became become|forgive forgave forgiven|wed wed wed|freeze froze frozen
        hang hung hung|deal dealt dealt|dream dreamed dreamed|withdraw withdrew withdrawn|swear swore sworn|bear bore borne
        """.replace("\n", "|").split("|")
        if line.strip()
    )
}

DOUBLED = set("stop drop chop grab rob swipe hug pet plan fit shop jog sob trip hop knit tug wrap beg run cut get put sit swim "
              "win hit let set shut dig begin forget quit grin sip spot nod chat pat rub wed scrub".split()) - {"swipe"}


def past(verb: str) -> str:
    return IRREGULAR[verb][0] if verb in IRREGULAR else _regular_past(verb)


def participle(verb: str) -> str:
    return IRREGULAR[verb][1] if verb in IRREGULAR else _regular_past(verb)


def _regular_past(verb: str) -> str:
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    return verb + verb[-1] + "ed" if verb in DOUBLED else verb + "ed"


def gerund(verb: str) -> str:
    if verb in ("lie", "die", "tie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith(("ee", "oe")) and verb != "be":
        return verb[:-1] + "ing"
    return verb + verb[-1] + "ing" if verb in DOUBLED else verb + "ing"


def third_person(verb: str) -> str:
    special = {"be": "is", "have": "has", "do": "does", "go": "goes"}
    if verb in special:
        return special[verb]
    if verb.endswith(("s", "sh", "ch", "x", "z")):
        return verb + "es"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + "s"


PLURALS = {"man": "men", "woman": "women", "child": "children", "mouse": "mice", "goose": "geese", "foot": "feet", "tooth": "teeth",
           "sheep": "sheep", "deer": "deer", "cattle": "cattle", "person": "people", "wolf": "wolves", "knife": "knives",
           "leaf": "leaves", "wife": "wives", "shelf": "shelves", "thief": "thieves", "loaf": "loaves", "fish": "fish",
           "aircraft": "aircraft", "potato": "potatoes", "tomato": "tomatoes", "hero": "heroes", "spacecraft": "spacecraft"}


def plural(noun: str) -> str:
    """The plural of a noun or of the first noun of "captain of a plane"."""
    for joint in (" of ", " with ", " in ", " behind ", " on ", " that ", " who ", " for ", " to ", " next ", " under ", " where "):
        if joint in noun:
            head, rest = noun.split(joint, 1)
            return plural(head) + joint + rest
    before, _, last = noun.rpartition(" ")
    for end, form in PLURALS.items():
        if last.endswith(end) and (last == end or end in ("man", "child", "woman")):
            return (before + " " + last[: -len(end)] + form).strip()
    if last.endswith(("s", "sh", "ch", "x")):
        return noun + "es"
    if last.endswith("y") and last[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def with_article(noun: str) -> str:
    starts_with_vowel = noun[0] in "aeiou" and not noun.startswith(("uni", "eur", "use", "one"))
    return ("an " if starts_with_vowel or noun.startswith(("hour", "honest")) else "a ") + noun


def compared(adjective: str, ending: str) -> str:
    """"bigger" and "biggest" of "big": the ending is "er" or "est"."""
    more = "more " if ending == "er" else "most "
    if " " in adjective or len(adjective) > 6 or adjective.endswith(("ed", "ful", "ous", "ive", "id", "al", "ic", "ing", "en", "nt", "wn")):
        return more + adjective
    if adjective.endswith("e"):
        return adjective + ending[1:]
    if adjective.endswith("y") and adjective[-2] not in "aeiou":
        return adjective[:-1] + "i" + ending
    return adjective + (adjective[-1] if adjective in ("big", "hot", "fat", "thin", "sad", "mad", "wet", "dim", "slim", "fit", "red") else "") + ending


def conjugate(phrase: str, tense: str) -> str:
    """A verb phrase such as "look for" in a tense: past, participle, gerund, present or base."""
    if phrase.startswith("cannot "):
        rest = phrase.removeprefix("cannot ")
        return {"past": "could not " + rest, "present": "cannot " + rest}.get(tense, "be unable to " + rest)
    if phrase.startswith("not "):
        helper = {"past": "did not ", "present": "does not "}
        rest = phrase.removeprefix("not ")
        return helper[tense] + rest if tense in helper else "not " + conjugate(rest, tense)
    if phrase.startswith("no longer "):
        return "no longer " + conjugate(phrase.removeprefix("no longer "), tense)
    verb, _, rest = phrase.partition(" ")
    form = {"past": past, "participle": participle, "gerund": gerund, "present": third_person, "base": str}[tense](verb)
    return f"{form} {rest}".strip()
