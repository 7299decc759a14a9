"""Small tasks: sums, comparisons, lists, everyday questions and talk. Each function draws a question and its answer."""

import random

from choices import expand
from stories import NAMES

KINDS = {
    "animals": "fox bear cat dog horse cow sheep goat lion tiger elephant monkey rabbit mouse wolf deer owl frog duck goose".split(),
    "colors": "red blue green yellow black white brown pink purple orange gray".split(),
    "fruits": "apple pear banana orange cherry grape plum peach lemon melon strawberry".split(),
    "vegetables": "carrot onion potato tomato bean pea cabbage pumpkin cucumber".split(),
    "tools": "hammer saw drill knife shovel rake axe ladder needle".split(),
    "clothes": "shirt coat hat scarf sock shoe glove dress skirt jacket".split(),
    "vehicles": "car bus train plane ship boat bicycle truck tram tractor".split(),
    "instruments": "violin flute guitar piano trumpet drum harp".split(),
    "things in a kitchen": "pot pan spoon fork plate cup oven kettle bowl".split(),
    "things in a school": "book pencil board desk chair ruler notebook map".split(),
    "jobs": "teacher doctor baker farmer pilot painter cook nurse driver".split(),
    "languages": "Rust Python English French German Spanish Italian".split(),
    "planets": "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split(),
    "ops": "relu softmax matmul gather concat reshape transpose argmax top_k gelu cast".split(),
    "commands of max": ["max generate", "max encode", "max list", "max convert", "max inspect", "max perplexity"],
}
ONE = {"animals": "animal", "colors": "color", "fruits": "fruit", "vegetables": "vegetable", "tools": "tool", "vehicles": "vehicle",
       "instruments": "instrument", "jobs": "job"}
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
SEASONS = "spring summer autumn winter".split()
OPPOSITES = """big small|hot cold|old new|happy sad|fast slow|light dark|high low|open closed|full empty|early late|rich poor|strong weak|loud quiet
hard soft|near far|long short|clean dirty|wet dry|good bad|up down|left right|day night|begin end|win lose|always never""".replace("\n", "|").split("|")
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
WORLD = [
    ("What color is [grass|the grass]?", "Grass is green."),
    ("What color is [snow|the snow]?", "Snow is white."),
    ("What color is the sky [on a clear day|]?", "The sky is blue on a clear day."),
    ("What color is [a banana|a lemon]?", "It is yellow."),
    ("How many days [are there in|does] a week[ have|]?", "A week has seven days."),
    ("How many months [are there in|does] a year[ have|]?", "A year has twelve months."),
    ("How many hours [are there in|does] a day[ have|]?", "A day has 24 hours."),
    ("How many minutes [are there in|does] an hour[ have|]?", "An hour has 60 minutes."),
    ("How many legs does a [dog|cat|horse|cow] have?", "It has four legs."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("How many legs does an insect have?", "An insect has six legs."),
    ("What do bees make?", "Bees make honey."),
    ("What do cows give?", "Cows give milk."),
    ("Where do fish live?", "Fish live in water."),
    ("What do birds do?", "Birds fly and sing."),
    ("[Is the sun|Is fire] hot or cold?", "It is hot."),
    ("Is ice hot or cold?", "Ice is cold."),
    ("What is the sun?", "The sun is a star."),
    ("What goes around the earth?", "The moon goes around the earth."),
    ("When do we sleep?", "We sleep at night."),
    ("What do we drink when we are thirsty?", "We drink water."),
]
TALK = [
    ("[Hello|Hi|Hey|Good morning|Good evening|Hello there|Hi there][!|.|]", "Hello! I can tell you a story, add numbers or answer questions about max-rs."),
    ("How are you[ today|]?", "I am fine, thank you. I am a small program and always in a good mood."),
    ("[Thank you|Thanks|Many thanks|Thanks a lot|Thank you very much][!|.|]", "You are welcome!"),
    ("[Goodbye|Bye|See you|See you later|Good night][!|.|]", "Goodbye! Come back for another story."),
    ("[Yes|Yes, please|Okay|Ok|Sure][!|.|]", "Good. Shall I tell you a story or add some numbers?"),
    ("[No|No, thank you|No thanks][!|.|]", "All right. Ask me something else if you like."),
    ("[That is wrong|This is wrong|You are wrong|That is not right][!|.|]", "I am sorry. I am only a toy and make mistakes."),
    ("[Great|Very good|Well done|That is right|That was nice|Nice][!|.|]", "Thank you! I am glad that you like it."),
    ("[Can you|Could you|Please] help me[?|.]", "I will try. I know stories, sums and a little about max-rs."),
    ("[Do you like|Do you love] [music|stories|animals|me|pizza]?", "I am a program and have no taste, but I like to tell stories."),
]
UNKNOWN = """Who is the [president|king|queen] of [France|England|America|Spain]?
What is the capital of [France|Italy|Japan|Peru|Norway]?
What is the weather like [today|tomorrow|in Berlin]?
Who wrote [Hamlet|the Odyssey|this poem|that book]?
What is the meaning of life?
How do I [bake bread|repair my bicycle|learn French|lose weight]?
What happened in [1492|1789|1969]?
How [far is the moon|old is the universe|high is the highest mountain|deep is the sea]?
Can you [write a poem|draw a picture|sing a song|play chess|translate this]?
What do you think about [politics|football|love|the future]?
Who won the [game|election|race] [yesterday|last year]?
What time is it?
Where can I buy [shoes|a car|a ticket]?
Which stock should I buy?
What is the best [film|book|restaurant|phone]?
Solve [the equation|x squared minus one|this riddle].
Explain [quantum physics|the theory of relativity|democracy|photosynthesis].""".splitlines()
DO_NOT_KNOW = "I do not know that. I am a small model that knows stories, sums and a little about max-rs."


def held_out_sums(count=100):
    """Pairs of two-digit numbers that the training text never adds, in either order."""
    chooser, pairs = random.Random(2021), []
    while len(pairs) < count:
        a, b = chooser.randint(10, 99), chooser.randint(10, 99)
        if (a, b) not in pairs and (b, a) not in pairs:
            pairs.append((a, b))
    return pairs


HELD_OUT = {pair for a, b in held_out_sums() for pair in ((a, b), (b, a))}


def pair(chooser):
    """Two numbers to add, most often of two digits; never those of `HELD_OUT`."""
    size = chooser.random()
    low, high = (0, 9) if size < 0.06 else (0, 99) if size < 0.15 else (10, 99) if size < 0.97 else (0, 999)
    while True:
        a, b = chooser.randint(low, high), chooser.randint(low, high)
        if (a, b) not in HELD_OUT:
            return a, b


def sum_of_two(chooser):
    a, b = pair(chooser)
    asked = expand("[What is {a} + {b}?|What is {a} + {b}?|{a} + {b}|{a} + {b} =|{a}+{b}|How much is {a} + {b}?|What is {a} plus {b}?|How much is {a} plus {b}?|"
                   "Add {a} and {b}.|Calculate {a} + {b}.|What is the sum of {a} and {b}?|Please add {a} and {b}.|What do you get if you add {a} and {b}?|"
                   "What does {a} + {b} make?|Compute {a} + {b}.]", chooser, dict(a=a, b=b))
    return asked, f"{a} + {b} = {a + b}."


def sheet(chooser):
    """A page of sums: [(text, whether the model learns to write it)]."""
    sums = [pair(chooser) for _ in range(chooser.randint(10, 30))]
    return [piece for a, b in sums for piece in ((f"{a} + {b} =", False), (f" {a + b}.\n", True))]


def difference(chooser):
    high = chooser.choice([9, 20, 99, 99])
    a, b = sorted((chooser.randint(0, high), chooser.randint(0, high)), reverse=True)
    asked = expand("[What is {a} - {b}?|{a} - {b}|How much is {a} - {b}?|What is {a} minus {b}?|Subtract {b} from {a}.|Calculate {a} - {b}.|"
                   "What is the difference between {a} and {b}?|Take {b} away from {a}.]", chooser, dict(a=a, b=b))
    return asked, f"{a} - {b} = {a - b}."


def product(chooser):
    a, b = chooser.randint(0, 12), chooser.randint(0, 12)
    asked = expand("[What is {a} * {b}?|{a} * {b}|{a} x {b}|What is {a} times {b}?|How much is {a} times {b}?|Multiply {a} by {b}.|Calculate {a} * {b}.]",
                   chooser, dict(a=a, b=b))
    return asked, f"{a} * {b} = {a * b}."


def comparison(chooser):
    a, b = chooser.sample(range(100), 2)
    larger, smaller = max(a, b), min(a, b)
    form = chooser.randrange(4)
    values = dict(a=a, b=b)
    if form == 0:
        asked = "[Which is larger, {a} or {b}?|Which number is larger, {a} or {b}?|What is larger, {a} or {b}?|Which is bigger, {a} or {b}?|Is {a} or {b} larger?]"
        return expand(asked, chooser, values), f"{larger} is larger than {smaller}."
    if form == 1:
        asked = "[Which is smaller, {a} or {b}?|Which number is smaller, {a} or {b}?|What is smaller, {a} or {b}?|Which is less, {a} or {b}?|Is {a} or {b} smaller?]"
        return expand(asked, chooser, values), f"{smaller} is smaller than {larger}."
    if form == 2:
        right = "Yes" if a > b else "No"
        return expand("[Is {a} larger than {b}?|Is {a} greater than {b}?|Is {a} more than {b}?]", chooser, values), \
            f"{right}, {a} is {'larger' if a > b else 'smaller'} than {b}."
    right = "Yes" if a < b else "No"
    return expand("[Is {a} smaller than {b}?|Is {a} less than {b}?]", chooser, values), f"{right}, {a} is {'smaller' if a < b else 'larger'} than {b}."


def of_numbers(chooser):
    """Counting, sorting, neighbours, even and odd."""
    form = chooser.randrange(8)
    a = chooser.randint(0, 80)
    numbers = chooser.sample(range(100), chooser.randint(3, 6))
    shown = ", ".join(map(str, numbers))
    if form == 0:
        b = a + chooser.randint(3, 12)
        return f"Count from {a} to {b}.", ", ".join(map(str, range(a, b + 1))) + "."
    if form == 1:
        a = chooser.randint(5, 20)
        return expand("[Count down from {a}.|Count backwards from {a}.]", chooser, dict(a=a)), ", ".join(map(str, range(a, -1, -1))) + "."
    if form == 2:
        return expand("[What comes after {a}?|Which number comes after {a}?|What is the next number after {a}?]", chooser, dict(a=a)), f"After {a} comes {a + 1}."
    if form == 3:
        return expand("[What comes before {a}?|Which number comes before {a}?]", chooser, dict(a=a + 1)), f"Before {a + 1} comes {a}."
    if form == 4:
        return expand("[Is {a} even or odd?|Is {a} odd or even?|Is the number {a} even?]", chooser, dict(a=a)), f"{a} is {'odd' if a % 2 else 'even'}."
    if form == 5:
        return expand("[Sort {x}.|Sort the numbers {x}.|Put these numbers in order: {x}.|Sort these numbers: {x}]", chooser, dict(x=shown)), \
            ", ".join(map(str, sorted(numbers))) + "."
    if form == 6:
        return expand("[What is the largest of {x}?|Which is the largest number: {x}?|Find the largest number: {x}.]", chooser, dict(x=shown)), \
            f"The largest number is {max(numbers)}."
    return expand("[What is the smallest of {x}?|Which is the smallest number: {x}?|Find the smallest number: {x}.]", chooser, dict(x=shown)), \
        f"The smallest number is {min(numbers)}."


def word_problem(chooser):
    name = chooser.choice(NAMES["he"] + NAMES["she"])
    he = "he" if name in NAMES["he"] else "she"
    things = chooser.choice("apples coins books stones nuts balls cards shells marbles stamps".split())
    while True:
        a, b = chooser.randint(2, 50), chooser.randint(2, 40)
        if (a, b) not in HELD_OUT:
            break
    if chooser.random() < 0.5:
        asked = expand("{name} has {a} {things} and [finds|gets|buys] {b} more. How many {things} does {he} have[ now|]?", chooser, locals())
        return asked, f"{a} + {b} = {a + b}. {name} has {a + b} {things}."
    a, b = max(a, b) + 1, min(a, b)
    asked = expand("{name} has {a} {things} and [gives away|loses|sells] {b} of them. How many {things} does {he} have[ left|]?", chooser, locals())
    return asked, f"{a} - {b} = {a - b}. {name} has {a - b} {things}."


def listing(chooser):
    kind, names = chooser.choice(list(KINDS.items()))
    count = chooser.randint(2, 6)
    chosen = chooser.sample(names, min(count, len(names)))
    number = NUMBERS[len(chosen)]
    asked = expand("[Name {n} {k}.|List {n} {k}.|Give me {n} {k}.|Tell me {n} {k}.|Write a list of {n} {k}.|Can you name {n} {k}?|Please name {n} {k}.]", chooser,
                   dict(n=chooser.choice([number, len(chosen)]), k=kind))
    if "list" in asked.lower():
        return asked, "\n".join(f"- {name}" for name in chosen)
    return asked, chosen[0][:1].upper() + chosen[0][1:] + (", " + ", ".join(chosen[1:-1]) if chosen[2:] else "") + f" and {chosen[-1]}."


def of_kinds(chooser):
    """Which kind a thing is of."""
    kind = chooser.choice(list(ONE))
    other = chooser.choice([k for k in ONE if k != kind])
    if {kind, other} == {"colors", "fruits"}:
        other = "animals"
    inside, outside = chooser.choice(KINDS[kind]), chooser.choice(KINDS[other])
    name = lambda word: ("an " if word[0] in "aeiou" else "a ") + word
    if chooser.random() < 0.5:
        word = chooser.choice([inside, outside])
        word_name = word if word in KINDS["colors"] else name(word)
        return f"Is {word_name} {name(ONE[kind])}?", (f"Yes, {word_name} is {name(ONE[kind])}." if word == inside
                                                     else f"No, {word_name} is not {name(ONE[kind])}.")
    group = chooser.sample(KINDS[kind], 3)
    group.insert(chooser.randrange(4), outside)
    return expand("[Which of these is not {k}: {x}?|Which word does not belong: {x}?]", chooser, dict(k=name(ONE[kind]), x=", ".join(group))), \
        f"{outside[0].upper() + outside[1:]} is not {name(ONE[kind])}."


def sequences(chooser):
    """Days, months, seasons and opposites."""
    form = chooser.randrange(6)
    if form == 0:
        return expand("[What are the days of the week?|Name the days of the week.|List the days of the week.]", chooser), \
            "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."
    if form == 1:
        return expand("[What are the months of the year?|Name the months.|List the months of the year.]", chooser), ", ".join(MONTHS[:-1]) + " and December."
    if form == 2:
        return expand("[What are the seasons?|Name the four seasons.|Which seasons are there?]", chooser), "Spring, summer, autumn and winter."
    if form == 3:
        names = chooser.choice([DAYS, MONTHS])
        at, step = chooser.randrange(len(names)), chooser.choice([1, -1])
        what = "day" if names is DAYS else "month"
        side = "after" if step == 1 else "before"
        return f"Which {what} comes {side} {names[at]}?", f"{names[(at + step) % len(names)]} comes {side} {names[at]}."
    one, two = chooser.choice(OPPOSITES).split()
    if chooser.random() < 0.5:
        one, two = two, one
    return expand("[What is the opposite of {x}?|Tell me the opposite of {x}.|The opposite of {x}?]", chooser, dict(x=one)), f"The opposite of {one} is {two}."


def words_in_order(chooser):
    """Repeating and reversing."""
    names = chooser.sample([name for kind in ONE for name in KINDS[kind]], chooser.randint(3, 5))
    form = chooser.randrange(4)
    shown = ", ".join(names)
    if form == 0:
        return f"Repeat: {shown}", shown
    if form == 1:
        return expand("[Reverse this list: {x}|Say these words backwards: {x}]", chooser, dict(x=shown)), ", ".join(names[::-1])
    if form == 2:
        return expand("[How many words are in this list: {x}?|Count these words: {x}]", chooser, dict(x=shown)), f"There are {NUMBERS[len(names)]} words."
    place = chooser.randrange(3)
    return f"What is the {['first', 'second', 'third'][place]} word of this list: {shown}?", f"The {['first', 'second', 'third'][place]} word is {names[place]}."


def everyday(chooser):
    asked, answer = chooser.choice(WORLD)
    return expand(asked, chooser), answer


def talk(chooser):
    asked, answer = chooser.choice(TALK)
    return expand(asked, chooser), answer


def unknown(chooser):
    return expand(chooser.choice(UNKNOWN), chooser), DO_NOT_KNOW


# How often each is drawn.
TASKS = {sum_of_two: 60, difference: 10, product: 8, comparison: 10, of_numbers: 8, word_problem: 5, listing: 7, of_kinds: 4, sequences: 5,
         words_in_order: 4, everyday: 3, talk: 4, unknown: 3}


def task(chooser):
    """A question and its answer."""
    return chooser.choices(list(TASKS), list(TASKS.values()))[0](chooser)
