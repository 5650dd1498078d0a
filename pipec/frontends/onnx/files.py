"""From a model file to an evaluated model: read, bound, run on fake tensors, its Ifs inlined."""

from pathlib import Path

from pipec.frontends.base import LoadOptions
from pipec.frontends.onnx.evaluation import Evaluation, evaluate
from pipec.frontends.onnx.inline_if import inline_ifs
from pipec.frontends.onnx.inputs import bind_inputs, examples, input_types
from pipec.frontends.onnx.paired import replace_paired
from pipec.frontends.onnx.reader import ModelFile, read


def evaluate_file(path: Path, options: LoadOptions) -> Evaluation:
    """Read a model file and run it on fake tensors: types, known values, weights, refusals.

    Raises:
        FrontendError: See `OnnxFrontend.load`.
    """
    return evaluate_model(read(path), options)


def evaluate_model(
    model: ModelFile, options: LoadOptions, sized: frozenset[str] = frozenset()
) -> Evaluation:
    """The same of a model that was read before.

    Args:
        model: The model.
        options: Shapes, bound inputs, and in which form integer operators are wanted.
        sized: Values that are known only as long as sizes are (`Growth.computed`).

    Raises:
        FrontendError: See `OnnxFrontend.load`.
    """
    model = replace_paired(model) if options.paired else model
    types = input_types(model, options)
    inputs = examples(model, types, bind_inputs(model, types, options), options.seed)
    evaluation = evaluate(model, inputs, sized=sized)
    while (flat := inline_ifs(evaluation.model, evaluation.known)) is not None:
        evaluation = evaluate(flat, inputs, sized=sized)
    return evaluation
