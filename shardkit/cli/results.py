"""`shardkit report` and `shardkit generate`."""

from pathlib import Path

from ..data.tokenizer import tokenizer_of
from ..task.generation import generate_text, load_for_generation
from ..train.report import describe_run, draw_curve


def add_commands(commands) -> None:
    """Add the parsers of both commands."""
    report = commands.add_parser("report", help="draw the loss curve of a run")
    report.add_argument("path", help="run folder")
    report.add_argument(
        "--output", help="file to write, .svg, .png or .pdf; default: curve.svg in the run folder"
    )
    report.set_defaults(run=_report, takes_settings=False)
    generate = commands.add_parser("generate", help="continue a text with a trained model")
    generate.add_argument("path", help="run folder, folder of checkpoints, or one checkpoint")
    generate.add_argument("--prompt", default="def ", help="text to continue; default: %(default)r")
    generate.add_argument(
        "--tokens", type=int, default=200, help="tokens to generate; default: %(default)s"
    )
    generate.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        help="0 takes the most probable token; default: %(default)s",
    )
    generate.add_argument(
        "--seed", type=int, default=0, help="seed of the random choice; default: %(default)s"
    )
    generate.set_defaults(run=_generate, takes_settings=False)


def _report(known, overrides) -> int:
    target = known.output or str(Path(known.path) / "curve.svg")
    draw_curve(known.path, target)
    print(describe_run(known.path) + target)
    return 0


def _generate(known, overrides) -> int:
    model, checkpoint = load_for_generation(known.path)
    tokenizer = tokenizer_of(checkpoint.companions())
    how = known.tokens, known.temperature, known.seed
    print(generate_text(model, tokenizer, known.prompt, *how))
    return 0
