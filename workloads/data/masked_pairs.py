"""Pairs of sentences with masked pieces, of real text, as BERT is trained on."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from workloads.data.text import WordPieces

Array = npt.NDArray[np.generic]
# Of the masked places: so many get the mask, so many of the rest any piece; the others keep their own.
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
    """Make examples of a sentence and the next one, or in half of them any other.

    Where a pair has fewer pieces than predictions, some are predicted twice.

    Args:
        sentences: two or more, as numbers of pieces. vocabulary: numbers there are.
        sequence: pieces of an example, three of them marks; longer pairs lose their ends in turn.
    Returns:
        `tokens` and `sentences` [examples, sequence]; `length` and `follows` [examples]; `masked` (places)
        and `words` (the pieces that stood there) [examples, predictions].
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
    kept = np.where(luck < _MASKED + (1 - _MASKED) * _ANY, anything, words)
    np.put_along_axis(tokens, masked, np.where(luck < _MASKED, pieces.mask, kept), axis=1)
    return {
        "tokens": tokens,
        "sentences": second,
        "length": length,
        "masked": masked,
        "words": words,
        "follows": follows,
    }


def _fitted(left: Sequence[int], right: Sequence[int], room: int) -> tuple[Sequence[int], Sequence[int]]:
    """Both without so much of the longer one's end as there is no room for."""
    n_left = max(min(len(left), room // 2), room - len(right))
    n_left = min(n_left, len(left))
    return left[:n_left], right[: room - n_left]
