"""The training text: stories as they are, pages of sums, and chats made of stories, tasks and questions about the project."""

import random

from choices import expand
from facts import fact
from stories import CREATURES, HUMANS, NAMES, Story
from tasks import sheet, task

BEGIN, END, USER, ASSISTANT, SYSTEM, PAD = "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|pad|>"
SPECIAL = [BEGIN, END, USER, ASSISTANT, SYSTEM, PAD]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SYSTEMS = ["You are a helpful assistant.", "You are a friendly assistant.", "Answer briefly.", "You are the model in the box of max-rs.", "Be kind and brief."]
ASK_FOR_STORY = "[Tell me a story|Write a story|Can you tell me a story|Please tell me a story|I want to hear a story|Make up a story|Write a short story]"


def story_request(chooser: random.Random):
    """A request for a story, the story, and the story's questions."""
    form = chooser.random()
    people = HUMANS["he"] + HUMANS["she"]
    if form < 0.3:
        story = Story(chooser)
        text = story.tell()
        words = text.split("\n")[0].split(" ")
        known = 4 if chooser.random() < 0.4 and text.startswith("Once upon a time") else chooser.randint(2, max(2, min(len(words), 16)))
        return " ".join(words[:known]).rstrip(","), text, story
    if form < 0.5:
        story = Story(chooser)
        return expand(ASK_FOR_STORY + "[.|!|?|]", chooser), story.tell(), story
    kind = chooser.choice(CREATURES + people)
    about = ("an " if kind[0] in "aeiou" else "a ") + chooser.choice(["", "", "little ", "brave "]) + kind
    about = about.replace("an little", "a little").replace("an brave", "a brave")
    if form < 0.75:
        story = Story(chooser, kind=kind)
        asked = f"{ASK_FOR_STORY} about {about}[.|!|]"
    elif form < 0.9:
        name = chooser.choice(NAMES["he"] if kind in HUMANS["he"] else NAMES["she"] if kind in HUMANS["she"] else NAMES["he"] + NAMES["she"])
        story = Story(chooser, kind=kind, name=name)
        asked = f"{ASK_FOR_STORY} about {about} [named|called] {name}[.|]"
    else:
        friend = chooser.choice([creature for creature in CREATURES if creature != kind])
        story = Story(chooser, kind=kind, friend_kind=friend)
        asked = f"{ASK_FOR_STORY} about {about} and {'an' if friend[0] in 'aeiou' else 'a'} {friend}[.|]"
    return expand(asked, chooser), story.tell(), story


def chat(chooser: random.Random):
    """Turns of a chat: [(question, answer)]."""
    if chooser.random() < 0.08:
        asked, told, story = story_request(chooser)
        turns = [(asked, told)]
        about = story.questions()
        chooser.shuffle(about)
        turns += [(expand(question, chooser), answer) for question, answer in about[: chooser.randint(0, 3)]]
        if chooser.random() < 0.3:
            turns.append(chooser.choice([task, fact])(chooser))
        return turns
    return [(fact if chooser.random() < 0.55 else task)(chooser) for _ in range(chooser.choices([1, 2, 3, 5, 8], [40, 15, 15, 15, 15])[0])]


def document(chooser: random.Random):
    """Pieces of text with whether the model learns to write them: [(text, learned)]."""
    form = chooser.random()
    if form < 0.2:
        return [(BEGIN, False), (Story(chooser).tell(), True), (END, True)]
    if form < 0.32:
        return [(BEGIN, False), *sheet(chooser), (END, True)]
    pieces = [(BEGIN, False)]
    if chooser.random() < 0.08:
        pieces += [(SYSTEM + chooser.choice(SYSTEMS) + END, False)]
    for asked, answer in chat(chooser):
        pieces += [(USER + asked + END + ASSISTANT, False), (answer + END, True)]
    return pieces
