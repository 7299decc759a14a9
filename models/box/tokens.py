"""The tokenizer: byte-level BPE whose numbers are single digits. `train` makes tokenizer.json; `Tokenizer` is a small reader of it,
so that training needs nothing but PyTorch."""

import json
import re
from pathlib import Path

from documents import BEGIN, END, PAD, SPECIAL, TEMPLATE

HERE = Path(__file__).parent
SIZE = 4096
# What BPE never joins: digits, words with the space before them, punctuation, runs of spaces. For ASCII text.
WORDS = re.compile(r"\d|'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[^\sA-Za-z\d]+|\s+(?=\d)|\s+(?!\S)|\s+")
MARKS = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")


def train(texts):
    """Makes tokenizer.json and tokenizer_config.json."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=[AddedToken(mark, special=True, normalized=False) for mark in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN}:1 $B:1", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))])
    tokenizer.save(str(HERE / "tokenizer.json"), pretty=False)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": END, "pad_token": PAD, "model_max_length": 1024,
              "clean_up_tokenization_spaces": False, "chat_template": TEMPLATE}
    (HERE / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(f"tokenizer.json: {tokenizer.get_vocab_size()} tokens")


def _letters():
    """The printable characters that stand for the 256 bytes in tokenizer.json."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(others)}


class Tokenizer:
    def __init__(self, folder=HERE):
        content = json.loads((Path(folder) / "tokenizer.json").read_text())
        self.ids = content["model"]["vocab"]
        merges = (tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in content["model"]["merges"])
        self.ranks = {merge: rank for rank, merge in enumerate(merges)}
        self.letters = _letters()
        self.bytes = {letter: byte for byte, letter in self.letters.items()}
        self.tokens = {number: token for token, number in self.ids.items()}
        self.known = {}

    def encode(self, text):
        """The ids of a text; marks such as <|user|> are tokens of their own."""
        ids = []
        for part in MARKS.split(text):
            if part in SPECIAL:
                ids.append(self.ids[part])
            else:
                for word in WORDS.findall(part):
                    ids += self.known.get(word) or self._word(word)
        return ids

    def _word(self, word):
        pieces = [self.letters[byte] for byte in word.encode()]
        while len(pieces) > 1:
            rank, place = min((self.ranks.get(pair, SIZE), place) for place, pair in enumerate(zip(pieces, pieces[1:])))
            if rank == SIZE:
                break
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
        self.known[word] = [self.ids[piece] for piece in pieces]
        return self.known[word]

    def decode(self, ids):
        data = b"".join(b"" if self.tokens[i] in SPECIAL else bytes(self.bytes[letter] for letter in self.tokens[i]) for i in ids)
        return data.decode(errors="replace")
