"""Text as numbers: bytes, words by frequency, pieces of words, and masked pairs of sentences."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from workloads.data.files import DATA, read_text
from workloads.protocol import WorkloadError

Ids = npt.NDArray[np.int32]
N_BYTES = 256
UNKNOWN_WORD = 0
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")
_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")
# BERT's special tokens, in the order used here.
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_MOST_LETTERS = 100


def words_of(text: str) -> list[str]:
    """English words of a text, in lower case and without punctuation."""
    return _WORD.findall(text.lower())


def word_ids(words: Sequence[str], *, vocabulary: int) -> Ids:
    """Number words by frequency, from 1; a word outside the vocabulary gets 0.

    Args:
        words: words of the text, in order.
        vocabulary: number of ids in use, including 0.
    """
    by_frequency = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    numbers = {word: number for number, (word, _) in enumerate(by_frequency[: vocabulary - 1], start=1)}
    return np.array([numbers.get(word, UNKNOWN_WORD) for word in words], np.int32)


def byte_ids(files: Iterable[Path], *, vocabulary: int) -> Ids:
    """Bytes of the files, concatenated.

    Raises:
        WorkloadError: the vocabulary has fewer than 256 ids.
    """
    if vocabulary < N_BYTES:
        message = f"vocabulary must be at least {N_BYTES}, one number for each byte of data, got {vocabulary}"
        raise WorkloadError(f"{message}; raise it", field="vocabulary")
    return np.frombuffer(b"".join(path.read_bytes() for path in files), np.uint8).astype(np.int32)


def rows_of(ids: Ids, length: int, *, most: int, field: str) -> Ids:
    """Cut a text into rows of equal length and drop the remainder.

    Args:
        most: maximum number of rows.
        field: parameter that sets the length, for error messages.
    Returns:
        [rows, length].
    Raises:
        WorkloadError: the text is shorter than one row.
    """
    n_rows = min(len(ids) // length, most)
    if n_rows < 1:
        message = f"{field} must be below the {len(ids):,} tokens of data, got {length - 1}; give more text"
        raise WorkloadError(message, field=field)
    return ids[: n_rows * length].reshape(n_rows, length)


class WordPieces:
    """Word-piece tokeniser: greedy longest match from left to right; inner pieces begin with `##`.

    Args:
        pieces: vocabulary; a piece's index is its number. It contains the special pieces, in any place.
    Source:
        Devlin et al. 2018, arXiv:1810.04805, section 3 (WordPiece, after Wu et al. 2016, arXiv:1609.08144).
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self._numbers = {piece: number for number, piece in enumerate(pieces)}
        self._known: dict[str, tuple[int, ...]] = {}
        self.unknown, self.mask = self._numbers["[UNK]"], self._numbers["[MASK]"]
        self.begin, self.separator, self.padding = (
            self._numbers[name] for name in ("[CLS]", "[SEP]", "[PAD]")
        )

    @classmethod
    def of_text(cls, words: Iterable[str], vocabulary: int) -> "WordPieces":
        """Make a vocabulary from a text: all letters, alone and inside words, and its most frequent words.

        Raises:
            WorkloadError: the vocabulary is too small for the letters.
        """
        counts = Counter(words)
        letters = sorted(set(chain.from_iterable(counts)))
        first = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
        if len(first) > vocabulary:
            message = f"vocabulary must be at least {len(first)}, for the letters of data, got {vocabulary}"
            raise WorkloadError(f"{message}; raise it", field="vocabulary")
        frequent = sorted((word for word in counts if len(word) > 1), key=lambda word: (-counts[word], word))
        return cls([*first, *frequent[: vocabulary - len(first)]])

    @classmethod
    def of_file(cls, path: Path, vocabulary: int) -> "WordPieces":
        """Read a vocabulary with one piece per line, such as BERT's `vocab.txt`.

        Raises:
            WorkloadError: the file has more pieces than `vocabulary`, or lacks a special piece.
        """
        pieces = read_text(path, field="pieces").splitlines()
        lacking = [name for name in SPECIAL if name not in pieces]
        if lacking:
            message = f"pieces must have {', '.join(SPECIAL)}, got {path} without {', '.join(lacking)}"
            raise WorkloadError(f"{message}; give a vocabulary of BERT's form", field="pieces")
        if len(pieces) > vocabulary:
            message = f"vocabulary must be at least {len(pieces):,}, the lines of {path}, got {vocabulary:,}"
            raise WorkloadError(f"{message}; raise it", field="vocabulary")
        return cls(pieces)

    def ids(self, words: Iterable[str]) -> list[int]:
        return list(chain.from_iterable(map(self._of_word, words)))

    def _of_word(self, word: str) -> tuple[int, ...]:
        if word not in self._known:
            self._known[word] = self._cut(word)
        return self._known[word]

    def _cut(self, word: str) -> tuple[int, ...]:
        pieces: list[int] = []
        start = 0
        while start < len(word) <= _MOST_LETTERS:
            head = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if head + word[start:end] in self._numbers), None)
            if end is None:
                return (self.unknown,)
            pieces.append(self._numbers[head + word[start:end]])
            start = end
        return tuple(pieces) or (self.unknown,)


def sentences_of(files: Iterable[Path]) -> list[list[str]]:
    """Sentences of the files, one per line, as lower-case words and punctuation; empty lines are ignored.

    Raises:
        WorkloadError: there are fewer than two sentences.
    """
    lines = chain.from_iterable(read_text(path).lower().splitlines() for path in files)
    sentences = [words for line in lines if (words := _WORD_OR_MARK.findall(line))]
    if len(sentences) < 2:
        message = f"data must have two sentences or more, one a line, got {len(sentences)}; give more text"
        raise WorkloadError(message, field=DATA)
    return sentences


Array = npt.NDArray[np.generic]
# Shares of the masked positions that get the mask, and of the rest that get a random piece.
_MASKED, _ANY = 0.8, 0.5
_MARKS = 3


def masked_pairs(
    sentences: Sequence[Sequence[int]],
    pieces: WordPieces,
    rng: np.random.Generator,
    *,
    vocabulary: int,
    sequence: int,
    predictions: int,
    examples: int,
) -> Mapping[str, Array]:
    """Make examples of two sentences: half of them consecutive, half with a random second sentence.

    If a pair has fewer pieces than `predictions`, some pieces are predicted twice.

    Args:
        sentences: two or more sentences, each a list of piece numbers. vocabulary: number of pieces.
        sequence: pieces per example, including three marks; longer pairs are truncated alternately.
    Returns:
        `tokens` and `sentences` [examples, sequence]; `length` and `follows` [examples]; `masked` (positions)
        and `words` (the original pieces there) [examples, predictions].
    Source:
        Devlin et al. 2018, arXiv:1810.04805, section 3.1 and A.1.
    """
    firsts = rng.integers(len(sentences) - 1, size=examples)
    follows = rng.integers(2, size=examples)
    others = rng.integers(len(sentences), size=examples)
    tokens = np.full((examples, sequence), pieces.padding, np.int64)
    second = np.zeros((examples, sequence), np.int64)
    length = np.zeros(examples, np.int64)
    masked = np.zeros((examples, predictions), np.int64)
    for row in range(examples):
        left, right = _fitted(
            sentences[firsts[row]],
            sentences[firsts[row] + 1 if follows[row] else others[row]],
            sequence - _MARKS,
        )
        whole = [pieces.begin, *left, pieces.separator, *right, pieces.separator]
        start = len(left) + 2
        tokens[row, : len(whole)] = whole
        second[row, start : len(whole)] = 1
        length[row] = len(whole)
        places = rng.permutation([*range(1, start - 1), *range(start, len(whole) - 1)])
        masked[row] = np.sort(np.resize(places, predictions))
    words = np.take_along_axis(tokens, masked, axis=1)
    luck = rng.random(masked.shape)
    anything = rng.integers(vocabulary, size=masked.shape)
    replaced = np.where(luck < _MASKED + (1 - _MASKED) * _ANY, anything, words)
    np.put_along_axis(tokens, masked, np.where(luck < _MASKED, pieces.mask, replaced), axis=1)
    return {
        "tokens": tokens,
        "sentences": second,
        "length": length,
        "masked": masked,
        "words": words,
        "follows": follows,
    }


def _fitted(left: Sequence[int], right: Sequence[int], room: int) -> tuple[Sequence[int], Sequence[int]]:
    """Both sentences, the longer one truncated until together they fit into `room` pieces."""
    n_left = max(min(len(left), room // 2), room - len(right))
    n_left = min(n_left, len(left))
    return left[:n_left], right[: room - n_left]
