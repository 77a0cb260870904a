"""Shipped workloads: a literal table of each one's factory, parameters and sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from strategies.errors import StrategyError
from strategies.params import Param, ParamValue
from workloads.optimizers import OPTIMIZERS
from workloads.protocol import WorkloadError, did_you_mean

SIZE = "size"
"""Name of the parameter that sets the defaults of others."""


def read_params(
    workload: str,
    table: tuple[Param, ...],
    values: Mapping[str, object],
    *,
    sizes: Mapping[str, Mapping[str, ParamValue]],
) -> dict[str, ParamValue]:
    """Check parameters and fill in defaults; names may be written with `-` for `_`.

    Args:
        workload: name of the workload, for error messages.
        table: parameters of the workload.
        values: parameter → value.
        sizes: defaults for each value of the parameter `size`; they override those of the table.

    Raises:
        WorkloadError: a name is unknown or a value is wrong.
    """
    by_name = {param.name: param for param in table}
    read: dict[str, ParamValue] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in by_name:
            message = f"workload {workload} has no parameter {key!r}{did_you_mean(name, by_name)}"
            raise WorkloadError(message, field=key)
        try:
            read[name] = by_name[name].read_text(value)
        except StrategyError as error:
            raise WorkloadError(str(error), field=name) from None
    for name, value in read.items():
        needed = by_name[name].needs
        if value is not None and needed is not None and read.get(needed) is None:
            message = f"{name} must come with {needed}, got {name} alone; give {needed}, or leave {name} out"
            raise WorkloadError(message, field=name)
    defaults = {param.name: param.default for param in table}
    if sizes:
        defaults |= sizes[str(read.get(SIZE, defaults[SIZE]))]
    return defaults | read


SIZES = ("tiny", "small", "full")
"""Sizes for tests, for two processor cores, and as published."""

_BERT_WORDS = 30_522
_GPT_TOKENS = 50_257


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One row of the table: the text for `list workloads`, and the class.

    Args:
        summary: one-line description.
        factory: `module:class`, called with name, training and the parameters.
        params: parameters with the defaults of size `small`.
        sizes: defaults for every size; empty for a workload with a single size.
        fixed: arguments that users cannot choose.
    """

    summary: str
    factory: str
    params: tuple[Param, ...]
    sizes: Mapping[str, Mapping[str, ParamValue]] = field(default_factory=lambda: MappingProxyType({}))
    fixed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


_NUMBERS = {
    "batch_size": ("examples", "Global batch: examples per step of all workers together."),
    "classes": ("classes", "Classes of the labels."),
    "embedding": ("values", "Width of the embedding."),
    "examples": ("examples", "Most examples in the dataset."),
    "factors": ("values", "Width of the embedding of a user or an item."),
    "features": ("values", "Inputs of an example."),
    "filters": ("filters", "Filters of the first convolution."),
    "heads": ("heads", "Attention heads of a layer."),
    "hidden": ("units", "Units of a hidden layer."),
    "input": ("pixels", "Side of an image."),
    "items": ("items", "Items that users rate."),
    "layers": ("layers", "Layers of the model."),
    "most_rows": ("rows", "Most rows of an embedding table; larger ones are cut."),
    "positions": ("tokens", "Longest sequence that the model has positions for."),
    "predictions": ("tokens", "Masked tokens of a sequence."),
    "lookups": ("rows", "Rows of each table that an example looks up."),
    "rows": ("rows", "Rows of a table."),
    "side": ("values", "Side of a square matrix."),
    "sampled": ("words", "Words of the sampled softmax."),
    "sequence": ("tokens", "Length of a sequence."),
    "sequence_length": ("tokens", "Length of a sequence."),
    "steps": ("tokens", "Unrolled steps of the LSTM."),
    "units": ("units", "Units of a hidden layer."),
    "users": ("users", "Users who rate items."),
    "variables": ("matrices", "Number of square matrices."),
    "vocabulary": ("tokens", "Tokens or words that the model knows."),
    "width": ("values", "Width of the model or its embeddings."),
}
"""Integer parameters: unit and summary."""


def _number(name: str, default: int) -> Param:
    unit, summary = _NUMBERS[name]
    return Param(name=name, type=int, default=default, minimum=1, unit=unit, summary=summary)


def _dropout(default: float) -> Param:
    return Param(
        name="dropout", type=float, default=default, minimum=0.0, below=1.0, summary="Share of units dropped."
    )


def _width_multiplier(default: float) -> Param:
    return Param(
        name="width_multiplier",
        type=float,
        default=default,
        above=0.0,
        maximum=1.0,
        summary="Factor on the width of each layer.",
    )


_FRACTIONS = {"dropout": _dropout, "width_multiplier": _width_multiplier}


def _optimizer(default: str) -> tuple[Param, ...]:
    return (
        Param(
            name="optimizer",
            type=str,
            default=default,
            choices=tuple(OPTIMIZERS),
            summary=f"One of {', '.join(OPTIMIZERS)}.",
        ),
        Param(
            name="learning_rate", type=float, default=None, above=0.0, summary="None: the optimizer's usual."
        ),
        Param(
            name="clip_global_norm", type=float, default=None, above=0.0, summary="Largest norm of gradients."
        ),
    )


# Real instead of synthetic data, and its checksum.
_DATA = (
    Param(name="data", type=str, form="path", default=None, summary="File of real data; none: synthetic."),
    Param(
        name="data_sha256",
        type=str,
        form="sha256",
        default=None,
        needs="data",
        summary="Checksum that the data file must have.",
    ),
)
_PIECES = Param(
    name="pieces", type=str, form="path", default=None, needs="data", summary="File of BERT's word pieces."
)


def _sized(
    summary: str,
    factory: str,
    *,
    optimizer: str,
    rows: Mapping[str, tuple[float, float, float]],
    fixed: Mapping[str, str] = MappingProxyType({}),
    data: tuple[Param, ...] = (),
) -> Entry:
    """A workload in three sizes: parameter → its values when tiny, small and full."""
    sizes = {size: {name: values[place] for name, values in rows.items()} for place, size in enumerate(SIZES)}

    return Entry(
        summary=summary,
        factory=factory,
        params=(
            Param(
                name=SIZE,
                type=str,
                default="small",
                choices=SIZES,
                summary="tiny: tests; small: two CPU cores; full: as published.",
            ),
            *[
                _number(name, value) if isinstance(value, int) else _FRACTIONS[name](value)
                for name, value in sizes["small"].items()
            ],
            *data,
            *_optimizer(optimizer),
        ),
        sizes=sizes,
        fixed=fixed,
    )


def _images(
    model: str, *, tiny: tuple[int, float], small: tuple[int, float], full: int, batch_size: int
) -> Entry:
    """A model of `keras.applications`: side of its images and width multiplier, whole when full."""
    return _sized(
        f"{model} of Keras on synthetic images",
        "workloads.models.keras_application:KerasApplication",
        optimizer="momentum",
        rows={
            "batch_size": (8, batch_size, 64),
            "input": (tiny[0], small[0], full),
            "classes": (10, 100, 1000),
            "width_multiplier": (tiny[1], small[1], 1.0),
            "examples": (64, 256, 256),
        },
        fixed={"model": model},
        data=_DATA,
    )


def _bert(summary: str, *, tiny: int, small: tuple[int, int], full: tuple[int, int]) -> Entry:
    """BERT by layers and width: a head has 64 numbers of the width, a hidden layer four widths."""
    return _sized(
        summary,
        "workloads.models.bert:Bert",
        optimizer="adamw",
        rows={
            "batch_size": (8, 8, 32),
            "vocabulary": (60, 8_192, _BERT_WORDS),
            "positions": (16, 128, 512),
            "sequence": (12, 64, 128),
            "predictions": (3, 10, 20),
            "layers": (tiny, small[0], full[0]),
            "width": (16, small[1], full[1]),
            "heads": (2, small[1] // 64, full[1] // 64),
            "hidden": (32, 4 * small[1], 4 * full[1]),
            "dropout": (0.1, 0.1, 0.1),
            "examples": (64, 1_024, 4_096),
        },
        data=(*_DATA, _PIECES),
    )


WORKLOADS: Mapping[str, Entry] = {
    "digits-mlp": Entry(
        summary="Perceptron on scikit-learn's 1,797 handwritten digits",
        factory="workloads.models.digits:DigitsMlp",
        params=(_number("batch_size", 64), _number("units", 256), *_optimizer("momentum")),
    ),
    "digits-cnn": Entry(
        summary="Convolutions with batch normalisation and dropout on the same handwritten digits",
        factory="workloads.models.digits:DigitsCnn",
        params=(
            _number("batch_size", 64),
            _number("filters", 16),
            _number("units", 64),
            _dropout(0.25),
            *_optimizer("momentum"),
        ),
    ),
    "word-lm": Entry(
        summary="Embedding and LSTM language model on Python's help texts, with sparse gradients",
        factory="workloads.models.lstm:WordLm",
        params=(
            _number("batch_size", 32),
            _number("vocabulary", 2500),
            _number("sequence_length", 16),
            _number("embedding", 64),
            _number("units", 64),
            *_optimizer("adam"),
        ),
    ),
    "wide-mlp": Entry(
        summary="Perceptron with 17.6 MB of parameters and little arithmetic, on synthetic clusters",
        factory="workloads.models.dense:WideMlp",
        params=(
            _number("batch_size", 16),
            _number("units", 1200),
            _number("layers", 4),
            _number("features", 64),
            _number("classes", 10),
            _number("examples", 4096),
            *_optimizer("momentum"),
        ),
    ),
    "linear-regression": _sized(
        "Least squares: what a step costs where hardly anything is computed",
        "workloads.models.dense:LinearRegression",
        optimizer="sgd",
        rows={
            "batch_size": (8, 64, 1024),
            "features": (4, 1_000, 100_000),
            "examples": (64, 4_096, 1_024),
        },
    ),
    "equal-variables": Entry(
        summary="Equal matrices and tables with hardly any arithmetic: what their exchanges cost",
        factory="workloads.models.equal_variables:EqualVariables",
        params=(
            _number("batch_size", 64),
            _number("variables", 16),
            _number("side", 256),
            Param(name="tables", type=int, default=0, minimum=0, unit="tables", summary="Number of tables."),
            _number("rows", 10_000),
            _number("width", 16),
            _number("lookups", 1),
            *_optimizer("sgd"),
        ),
    ),
    "resnet50": _images("ResNet50", tiny=(32, 0.05), small=(64, 0.5), full=224, batch_size=16),
    "resnet101": _images("ResNet101", tiny=(32, 0.05), small=(64, 0.5), full=224, batch_size=16),
    "vgg16": _images("VGG16", tiny=(32, 0.05), small=(32, 0.5), full=224, batch_size=16),
    "densenet121": _images("DenseNet121", tiny=(32, 0.1), small=(64, 0.5), full=224, batch_size=16),
    "inception-v3": _images("InceptionV3", tiny=(75, 0.05), small=(96, 0.5), full=299, batch_size=16),
    "bert-base": _bert(
        "BERT's pre-training, 12 layers of 768 when full", tiny=2, small=(4, 256), full=(12, 768)
    ),
    "bert-large": _bert(
        "BERT's pre-training, 24 layers of 1024 when full", tiny=3, small=(8, 512), full=(24, 1024)
    ),
    "gpt-small": _sized(
        "Decoder that guesses the next token, GPT-2's 124 million parameters when full",
        "workloads.models.gpt:Gpt",
        optimizer="adamw",
        rows={
            "batch_size": (8, 8, 8),
            "vocabulary": (60, 8_192, _GPT_TOKENS),
            "positions": (16, 256, 1_024),
            "sequence": (12, 64, 512),
            "layers": (2, 4, 12),
            "width": (16, 256, 768),
            "heads": (2, 4, 12),
            "dropout": (0.1, 0.1, 0.1),
            "examples": (64, 1_024, 1_024),
        },
        data=_DATA,
    ),
    "lm1b": _sized(
        "LSTM-2048-512 of the One Billion Word benchmark, sampled softmax over 793,471 words when full",
        "workloads.models.lstm:Lm1b",
        optimizer="adagrad",
        rows={
            "batch_size": (8, 32, 128),
            "vocabulary": (60, 50_000, 793_471),
            "width": (8, 128, 512),
            "units": (16, 256, 2_048),
            "steps": (4, 20, 20),
            "sampled": (20, 512, 8_192),
            "dropout": (0.1, 0.1, 0.1),
            "examples": (64, 4_096, 16_384),
        },
        data=_DATA,
    ),
    "ncf": _sized(
        "NeuMF over users and items, as many as MovieLens-1M has when full",
        "workloads.models.recommenders:Ncf",
        optimizer="adam",
        rows={
            "batch_size": (8, 256, 2_048),
            "users": (40, 6_040, 6_040),
            "items": (30, 3_706, 3_706),
            "factors": (8, 8, 8),
            "examples": (64, 50_000, 5_001_045),
        },
        data=_DATA,
    ),
    "dlrm": _sized(
        "Clicks from 13 numbers and ids in 26 tables, those of Criteo's Kaggle data when full",
        "workloads.models.recommenders:Dlrm",
        optimizer="sgd",
        rows={
            "batch_size": (8, 128, 2_048),
            "most_rows": (50, 20_000, 10_131_227),
            "width": (4, 16, 16),
            "hidden": (16, 256, 512),
            "examples": (64, 16_384, 65_536),
        },
    ),
}

KERAS = Entry(
    summary="A model of keras.applications with random weights, on synthetic images: keras:MobileNetV2",
    factory="workloads.models.keras_application:KerasApplication",
    params=(
        _number("batch_size", 16),
        _number("input", 96),
        _number("classes", 10),
        _width_multiplier(1.0),
        _number("examples", 128),
        *_DATA,
        *_optimizer("momentum"),
    ),
)
