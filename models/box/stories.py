"""Small stories: a hero, a place, what happens there, and an end that follows from it. The sentences are in stories.txt."""

import random
import re
import sys
from pathlib import Path

from choices import expand

HERE = Path(__file__).parent

NAMES = {
    "he": "Tom Leo Max Ben Oskar Felix Hugo Milo Finn Theo Paul Emil Anton Noah Sam Jonas Karl Otto Bruno Nico Rafi Omar Tariq Kenji Arun".split(),
    "she": "Lila Mia Anna Ida Clara Nora Emma Lotte Greta Zoe Maja Ella Ruth Sina Tilda Nina Paula Juna Alma Frida Leila Yuki Priya Amara Rosa".split(),
}
FORMS = {
    "he": {"he": "he", "him": "him", "his": "his", "himself": "himself"},
    "she": {"he": "she", "him": "her", "his": "her", "himself": "herself"},
}
HUMANS = {"he": ["boy", "prince", "shepherd boy", "fisher boy"], "she": ["girl", "princess", "shepherd girl", "fisher girl"]}
CREATURES = "fox rabbit bear mouse hedgehog cat dog squirrel frog duck turtle lion elephant penguin robot dragon giant wolf goat monkey beaver".split()
TRAITS = "kind brave curious clever shy cheerful quiet proud gentle patient friendly careful funny happy dreamy lively stubborn helpful".split()
HOMES = [("a small village by the sea", "the village"), ("a village in the mountains", "the village"), ("a big city", "the city"),
         ("a little town by the river", "the town"), ("a quiet valley", "the valley"), ("a green land behind the hills", "the land"),
         ("a forest full of old trees", "the forest"), ("a small town with a tall tower", "the town"), ("a village with a windmill", "the village"),
         ("a harbor town", "the town")]
PLACES = [("the forest", "in the forest", "to the forest"), ("the river", "by the river", "to the river"), ("the hill", "on the hill", "to the hill"),
          ("the old mill", "near the old mill", "to the old mill"), ("the beach", "on the beach", "to the beach"),
          ("the lake", "by the lake", "to the lake"), ("the meadow", "in the meadow", "to the meadow"), ("the garden", "in the garden", "to the garden"),
          ("the old castle", "behind the old castle", "to the old castle"), ("the bridge", "under the bridge", "to the bridge"),
          ("the park", "in the park", "to the park"), ("the field", "in the field", "to the field"), ("the mountain", "on the mountain", "to the mountain"),
          ("the harbor", "at the harbor", "to the harbor"), ("the valley", "in the valley", "to the valley")]
FAR = ["the island of birds", "the silver mountain", "the flower garden", "the town of lights", "the blue valley", "the great waterfall"]
HELPERS = [("owl", "he"), ("woman", "she"), ("man", "he"), ("fisherman", "he"), ("turtle", "she"), ("wizard", "he"), ("shepherd", "he"),
           ("gardener", "she"), ("sailor", "he"), ("teacher", "she"), ("badger", "he"), ("stork", "she")]
SMALL = "beetle sparrow ladybug lizard kitten duckling lamb snail bee chick".split()
FLYERS = ["butterfly", "blue bird", "white hare", "dragonfly", "firefly", "golden moth"]
FOODS = [("a piece of bread with cheese", "bread"), ("a big apple", "apple"), ("a warm bun", "bun"), ("a slice of cake", "cake"),
         ("two pancakes", "pancakes"), ("a sandwich", "sandwich"), ("a bag of nuts", "nuts"), ("a honey cake", "honey cake")]
GIFTS = ["small lamp", "silver whistle", "red scarf", "wooden flute", "little bell", "blue stone", "golden key", "warm cap", "compass", "music box"]
TREASURES = "kite ball drum boat wagon puppet top trumpet train bucket".split()
THINGS = "boot spoon hat pot wheel bottle chain umbrella cup horseshoe".split()
MACHINES = ["clock", "water mill", "fountain", "music machine", "radio", "old tractor", "pump", "merry-go-round"]
WARES = ["bread and milk", "six eggs", "a bag of flour", "some apples", "carrots and onions", "cheese and butter"]
TRADERS = ["a trader with a long coat", "a trader with a green hat", "a trader with a donkey", "a trader with a big smile"]
SOUPS = ["soup", "vegetable soup", "bean soup", "pumpkin soup", "potato soup"]
MUSICIANS = ["an old man", "a traveling musician", "a young woman", "the baker"]
INSTRUMENTS = "violin flute guitar piano trumpet harp".split()
WEATHER = "sunny cool warm windy cloudy bright clear misty".split()
TIMES = ["morning", "day", "afternoon", "spring day", "summer day", "autumn day"]
HABITS = ["picked berries", "fed the birds", "swam in the lake", "worked in the garden", "read a book under a tree", "drew pictures",
          "watched the boats", "baked bread with {his} {parent}", "played outside", "collected stones", "helped the neighbors", "ran up the hill"]
LOVES = ["looking at the clouds", "singing", "climbing trees", "telling jokes", "building things", "listening to stories", "cooking",
         "dancing in the rain", "asking questions", "making music", "solving riddles", "sleeping in the sun"]


def _read():
    sections, current = {}, None
    for line in (HERE / "stories.txt").read_text().splitlines():
        if line.startswith("== "):
            current = sections.setdefault(line[3:], [])
        elif line.strip() and not line.startswith("#"):
            current.append(line)
    return sections


SECTIONS = _read()
EPISODES = {name.split()[1]: (name.split()[2], lines) for name, lines in SECTIONS.items() if name.startswith("episode ")}


def _capital(text):
    return text[:1].upper() + text[1:]


def _polished(text):
    """Articles before vowels, and commas between what is said and who says it."""
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
    text = re.sub(r'([?!]),"', r'\1"', text)
    return re.sub(r'([a-z])" (said|asked)', r'\1," \2', text)


class Story:
    """A story that is told once; what it says stays known, for questions about it."""

    def __init__(self, chooser: random.Random, kind=None, name=None, friend_kind=None):
        self.chooser = chooser
        pick = chooser.choice
        sex, other = pick(["he", "she"]), pick(["he", "she"])
        if kind in HUMANS["he"] or kind in HUMANS["she"]:
            sex = "he" if kind in HUMANS["he"] else "she"
        if name:
            sex = "he" if name in NAMES["he"] else "she"
        kind = kind or pick(HUMANS[sex] * 2 + CREATURES)
        friends = [k for k in HUMANS[other][:1] * 4 + CREATURES if k != kind]
        self.values = value = dict(FORMS[sex])
        value["N"] = name or pick(NAMES[sex])
        value["trait"] = pick(TRAITS)
        self.kind = kind
        value["kind"] = pick(["", "", "little ", "young "]) + kind
        value["home"], value["home_short"] = pick(HOMES)
        value["F"] = pick([n for n in NAMES[other] if n != value["N"]])
        self.friend_kind = value["fkind"] = friend_kind or pick(friends)
        value["fhis"] = FORMS[other]["his"]
        value["small"] = pick(SMALL)
        value["parent"], value["parent_his"] = pick([("mother", "her"), ("father", "his"), ("grandmother", "her"), ("grandfather", "his")])
        self.lesson = None
        self.end = None

    def _say(self, line):
        """One line in words, with what belongs to the place and time at hand."""
        return expand(expand(line, self.chooser, self.values), self.chooser, self.values)

    def _scene(self):
        """New surroundings for the next part."""
        pick, value = self.chooser.choice, self.values
        value["P"], value["inP"], value["toP"] = pick(PLACES)
        value["helper"], sex = pick([helper for helper in HELPERS if helper[0] != self.kind])
        value["helper_him"], value["helper_his"], value["an_old"] = FORMS[sex]["him"], FORMS[sex]["his"], "an old"
        value["food"], value["food_noun"] = pick(FOODS)
        value["rival"] = pick([name for name in NAMES["he"] + NAMES["she"] if name not in (value["N"], value["F"])])
        value["coins"], value["left"] = pick([("five", "two coins"), ("six", "three coins"), ("eight", "two coins"), ("ten", "four coins")])
        for key, choices in dict(faraway=FAR, gift=GIFTS, treasure=TREASURES, thing=THINGS, machine=MACHINES, ware=WARES, a_trader=TRADERS, soup=SOUPS,
                                 musician=MUSICIANS, instrument=INSTRUMENTS, weather=WEATHER, time=TIMES, habit=HABITS, love=LOVES,
                                 flyer=FLYERS).items():
            value[key] = pick(choices)
        for key in ("he", "his", "inP", "faraway", "home_short"):
            value[_capital(key)] = _capital(value[key])

    def _part(self, lines):
        """The lines of an episode, one after the other."""
        kept = [line.removeprefix("? ") for line in lines if not line.startswith("? ") or self.chooser.random() < 0.5]
        return " ".join(self._say(line) for line in kept)

    def tell(self, episodes=None) -> str:
        """The story, a paragraph for each part."""
        chance = lambda share: self.chooser.random() < share
        one = lambda name: self._say(self.chooser.choice(SECTIONS[name]))
        count = episodes or self.chooser.choices([1, 2, 3], [55, 35, 10])[0]
        chosen = self.chooser.sample(sorted(EPISODES), count)
        needs_friend = any("{F}" in line for name in chosen for line in EPISODES[name][1])
        self._scene()
        first = [one("open")]
        self.has_friend = needs_friend or chance(0.25)
        if chance(0.6):
            first.append(one("routine"))
        if self.has_friend:
            first.append(one("friend"))
        paragraphs = [" ".join(first)]
        rescued = False
        for number, name in enumerate(chosen):
            if number:
                self._scene()
            beginning = one("winter" if name == "snow" else "later" if number else "day")
            paragraphs.append(beginning + " " + self._part(EPISODES[name][1]))
            rescued |= name == "rescue"
        self.lesson = EPISODES[chosen[-1]][0]
        if rescued and chance(0.85):
            paragraphs.append(self._part(SECTIONS["callback"]))
            self.lesson = "kindness"
        ending = [end for end in SECTIONS["end " + self.lesson] if self.has_friend or "{F}" not in end]
        self.end = self._say(self.chooser.choice(ending))
        paragraphs.append(self.end + (" " + one("last") if chance(0.5) else ""))
        return _polished("\n\n".join(paragraphs))

    def questions(self):
        """Questions about the story just told, and their answers."""
        v = self.values
        asked = [
            ("[Who is the story about?|Who was the story about?|Who is the hero of the story?]", f"The story is about {v['N']}, a {v['trait']} {v['kind']}."),
            (f"Where did {v['N']} live?", f"{v['N']} lived in {v['home']}."),
            (f"What was {v['N']} like?", f"{v['N']} was {v['trait']}."),
        ]
        if self.has_friend:
            asked.append((f"Who was {v['F']}?", f"{v['F']} was a {v['fkind']} and a friend of {v['N']}."))
        if "had learned that" in self.end:
            asked.append((f"What did {v['N']} learn?", self.end.replace("had learned", "learned")))
        return [(question, _polished(answer)) for question, answer in asked]


if __name__ == "__main__":
    # `python stories.py SEED COUNT` prints stories; heldout.txt has forty of a seed that training does not use.
    seed, count = map(int, sys.argv[1:])
    print("\n\n".join(Story(random.Random(seed + number)).tell() for number in range(count)))
