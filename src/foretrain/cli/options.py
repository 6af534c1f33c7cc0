"""Options: what each is called and says in help, told once (`ARGUMENTS`, `OPTIONS`), and groups that commands share.

A command takes plain parameters and groups (`question: Question`, `output: Output`), which `app.py` unfolds into one
parameter per field.
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from pathlib import Path
from typing import Any

from foretrain.errors import InputError

LOCAL_PROCESSES = re.compile(r"\s*(?:\d+\s*[x×*]\s*)?local\s*")
"""Clusters that are this machine. Told here, because measurements are loaded only for them."""
NO_MODEL = "MODEL: missing. Specify a zoo name such as llama3-8b ('foretrain catalog list models')."
NO_CLUSTER = (
    "--on: missing. Specify a cluster such as '2 x dgx-h100' ('foretrain catalog list nodes')."
)
KINDS = ("devices", "nodes", "links", "models", "runtimes", "measurements")
"""What the catalog lists."""
SCHEMAS = ("cluster", "plan", "model", "case", "prediction", "search", "runtime", "calibration")
"""Documents that have a JSON Schema; named here so that a key press does not load them."""

# A parameter of any command, or of one -> (what stands for its value, its help, its flags if not --its-name).
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "model": ("MODEL", "Zoo name, Hugging Face config.json or Foretrain YAML file."),
    "explain.file": ("FILE", "A prediction written with -o FILE.json."),
    "compare.a": ("A", "A prediction written with -o A.json."),
    "compare.b": ("B", "The prediction to compare it with."),
    "validate.cases": ("CASES…", "Case files with measured values (JSON Lines; '-' for standard input)."),
    "schema.name": ("NAME", " | ".join(SCHEMAS)),
    "catalog list.kind": ("KIND", " | ".join(KINDS)),
    "catalog show.name": ("NAME", "A device, node, link, model or runtime; or a cluster to draw."),
    "catalog add.file": ("FILE", "YAML file with devices, nodes or links."),
    "calibrate.measured": ("FILES…", "Exported measurements (.json, .csv). Default: the store."),
    "measure import.measured": ("FILES…", "Files written by 'measure export'."),
    "measure export.file": ("FILE", "A .json or .csv file. Default: JSON on stdout."),
    "measure data.places": ("PATHS…", "Training data files or directories."),
    "measure train.command": (
        "-- COMMAND…", "Command that runs the script: torchrun --nproc-per-node 2 train.py …, or python train.py …"),
    "measure whatif.file": ("FILE.json", "JSON file written by `measure train`."),
    "import trace.recorded": ("FILE…", "torch.profiler traces, one per rank; may be gzipped."),
    "import nccl-tests.results": ("FILE…", "Output of nccl-tests: text, or the JSON of -J."),
    "import model.files": ("FILE…", ""),
    "import cluster.files": ("FILE…", ""),
}  # fmt: skip
OPTIONS: dict[str, tuple[str, ...]] = {
    # --- the answer
    "json": ("", "Print one JSON document on stdout and nothing else."),
    "files": ("FILE", "Also write FILE; the extension determines the format. Repeatable.", "-o", "--output"),
    "quiet": ("", "Print only the headline, no progress.", "-q", "--quiet"),
    "verbose": ("", "More detail, and tracebacks of internal errors.", "-v", "--verbose"),
    # --- the step
    "on": ("CLUSTER", "'16 x dgx-a100-80gb', '4 x aws:p4d.24xlarge', a YAML file, or '2 x local' for this machine."),
    "measure ops.on": ("CLUSTER", "Cluster whose sharded kernel shapes to time. Default: one process."),
    "measure train.model": ("MODEL", "Also predict this model and compare."),
    "plan": (
        "", "'tp8 pp16 dp8 zero1 1f1b recompute=full', a YAML file, or auto for the best plan of a quick search."),
    "batch": (
        "N", "Global batch size in samples, or in tokens such as 4Mtok. Default: one micro-batch per replica of a plan "
        "(4 per pipeline stage), or 4M tokens where the plan is chosen too."),
    "search.batch": ("N", "Global batch size in samples."),
    "recommend.batch": ("N", "Global batch size in samples, or in tokens such as 4Mtok."),
    "batch_tokens": ("N", "Global batch size in tokens, such as 4M."),
    "micro_batch": ("N", "Micro-batch size in samples. Default: the largest that fits."),
    "seq": ("N", "Sequence length, such as 4096 or 4k."),
    "precision": ("", "bf16, fp16, fp32, fp8 …"),
    "optimizer": ("", "adam, sgd …"),
    "runtime": ("", "megatron, fsdp, ddp …; see 'catalog list runtimes'."),
    "headroom": ("SHARE|SIZE", "Device memory to keep free: 5% or 4GiB. Default: runtime default."),
    "stragglers": (
        "SPEC", "Slow devices: 'rank:factor,…' such as 3:1.5, or a distribution 'sigma=0.05,seed=1'."),
    "options": (
        "KEY=VALUE", "Runtime option: attention=flash, compile=true, cuda_graphs=true … Repeatable.",
        "--set", "--runtime-option"),
    "whatif.options": ("KEY=VALUE", "Runtime option, before and after the change. Repeatable.", "--runtime-option"),
    "calibration": (
        "FILE", "Calibration from 'foretrain calibrate -o FILE.json'. Default for local: the measurement store."),
    # --- the job
    "tokens": ("N", "Length of the job in tokens, such as 15T or 1e12."),
    "samples": ("N", "… or in samples, counting repetitions."),
    "steps": ("N", "… or in steps."),
    "epochs": ("N", "… or in epochs over a dataset of …"),
    "recommend.epochs": ("N", "… or in epochs over --data."),
    "dataset_samples": ("N", "… this many samples,"),
    "dataset_tokens": ("N", "… or this many tokens."),
    "usd_per_hour": ("USD", "Price per device-hour. Default: catalog price."),
    "pue": ("FACTOR", "Power usage effectiveness: data center power over device power, for energy."),
    "mtbf": ("TIME", "Mean time between failures of one node, such as 90d."),
    "restart": ("TIME", "Time from an interruption until training resumes."),
    "checkpoint_rate": ("RATE", "Checkpoint write bandwidth per node, such as 2GB/s."),
    # --- predict, whatif, sweep, compile, export
    "cases": ("FILE", "Predict every case of a JSON Lines file ('-' for standard input)."),
    "changes": (
        "KEY=VALUE", "What to change: network.bandwidth=2x, interconnect.bandwidth=2x, device.compute=1.5x, "
        "device.memory_bandwidth=2x, host=0x, plan='…', batch=512, runtime=fsdp2; or a runtime option: "
        "cuda_graphs=true, attention=flash … Repeatable.", "--set"),
    "vary": (
        "KEY=A,B,C", "Values to sweep: seq=4k,8k; plan='tp4 dp4','tp8 dp2'; network.bandwidth=1x,2x. Repeatable: all "
        "combinations."),
    "dump": ("", "Also list the items of every shape and every task."),
    "to": ("TARGET", "megatron, deepspeed, torchrun, accelerate or nanotron."),
    "export.folder": ("DIR", "Write the files to DIR. Default: stdout.", "-o", "--output"),
    "export.quiet": ("", "Do not list the written files.", "-q", "--quiet"),
    "export.verbose": ("", "Show tracebacks of internal errors.", "-v", "--verbose"),
    # --- search
    "objective": ("time|cost|memory|pareto", "What to minimize."),
    "top": ("N", "Number of plans to show."),
    "where": (
        "CONSTRAINTS", "Only consider plans matching 'tp<=8, pp=4|8, zero>=1, sp, no recompute'. Repeatable."),
    "per_layer": ("", "Also search for different strategies per layer."),
    "hypothetical": ("", "Also consider plans that the software stack cannot run."),
    "seed": ("N", "Random seed for --stragglers given as a distribution; the search itself is deterministic."),
    "workers": ("N", "Number of worker processes. Default: search in this process."),
    "ray": ("ADDRESS", "Address of a Ray cluster to use; 'local' starts one on this machine."),
    "state": ("FILE", "Save progress in FILE; the same command resumes from it."),
    "search.restart": ("", "Discard the progress saved in --state FILE."),
    "export": ("DIR", "Write launch files for the best plan to DIR."),
    "search.to": ("TARGET", "Framework of the launch files: megatron, deepspeed, torchrun …"),
    "why": ("CHOICE", "Explain why the best plan does not use this choice, such as 'tp=4'."),
    # --- recommend
    "deadline": ("TIME", "Maximum time, such as 36h or 2 weeks."),
    "budget_usd": ("N", "Maximum cost in USD."),
    "batch_per_device": (
        "N", "Batch size per device instead; the global batch scales with the number of devices."),
    "data": ("DATA", "Dataset: imagenet-1k, or 'samples=1.3M,sample=110kB,prep=5ms,workers=8'."),
    "storage": ("RATE", "Storage read bandwidth per node, such as 2GB/s."),
    "spot": ("", "Use spot prices."),
    "reserved": ("", "Use the reserved prices from --prices."),
    "prices": ("FILE", "Your own prices and quotas (CSV or YAML); overrides the catalog."),
    "quota": ("N|NAME=N", "Maximum number of instances: 16, 'aws:p4*=8'. Repeatable."),
    "instances": ("NAME,…", "Only these instances, * as wildcard: 'aws:p*,gcp:a3*'. Repeatable."),
    "max_devices": ("N", "Maximum number of devices in a cluster. Default: 512."),
    "recommend.where": ("RULE", "Only consider plans matching 'tp<=4', 'no recompute' … Repeatable."),
    "spot_rate": ("SHARE", "Fraction of spot instances preempted per hour."),
    # --- validate
    "quality": ("", "Qualities of measurement to include."),
    "group": ("NAME", "Only this group. Repeatable."),
    "split": ("fit|check", "Only the fit or the check half of the cases, split by a hash of their configuration."),
    "validate.tolerance": ("", "Exit with code 1 if the mean error over all cases exceeds this, such as 0.1."),
    "jobs": ("N", "Number of processes. Default: all cores."),
    # --- measure, calibrate
    "store": ("FILE", "Measurement store. Default: your own store."),
    "machine": ("ID", "Machine whose measurements to use. Default: this one (or the only one in FILES)."),
    "measure export.machine": ("ID", "Only measurements of this machine."),
    "measure export.kind": ("", "Only one kind: op, link, data, train or host."),
    "threads": ("N", "CPU threads per process; recorded with the timings."),
    "calibrate.threads": ("N", "Use kernels timed with N threads. Default: the number used most often."),
    "calibrate.processes": ("N", "Use kernels timed by N concurrent processes."),
    "measure ops.processes": ("N", "Time in N concurrent processes, as when N ranks train on this host."),
    "measure links.processes": ("N", "Processes to start on this host; ignored under torchrun."),
    "calibrate.device": ("NAME", "Catalog name of the measured GPU."),
    "measure ops.device": ("NAME", "cpu or cuda. Default: cuda if available."),
    "measure data.device": ("NAME", "cpu or cuda."),
    "tolerance": ("", "Repeat until the relative error of the median is below this."),
    "budget": ("TIME", "Stop after this time, such as 60s."),
    "collectives": ("NAMES", "Such as all_reduce,send. Default: all."),
    "sizes": ("SIZES", "Such as 1KiB,1MiB. Default: 1 KiB to 16 MiB."),
    "backend": ("NAME", "gloo or nccl. Default: nccl if GPUs are available."),
    "dataset": ("MODULE:NAME", "Dataset whose preprocessing is timed."),
    "measure data.samples": ("N", "Samples per worker."),
    "measure data.workers": ("N,…", "Numbers of workers to try. Default: 1, 2, 4 … up to the number of cores."),
    "size": ("SIZE", "Size of the test file that is read if no PATHS are given."),
    "folder": ("DIR", "Directory for the test file."),
    # --- measure train, measure whatif
    "measure train.data": ("PATH", "Training data files or directories. Repeatable."),
    "measure train.steps": ("", "Steps timed in each run."),
    "warmup": ("", "Untimed warm-up steps before them."),
    "repeats": ("", "Launches of each run."),
    "rounds": ("", "Rounds over all runs within a launch, to average out machine drift."),
    "measure train.budget": ("TIME", "Time limit for the steps of a run."),
    "timeout": ("TIME", "Time limit for a whole launch."),
    "runs": ("T0,T1,…", "Only these runs."),
    "one": (
        "COMMAND", "Command that runs the script on one device, for launchers other than torchrun.", "--one-device"),
    "cache": ("cold|warm", "Whether the stall breakdown is of a step with a cold or a warm cache."),
    "log": ("FILE", "Write the output of the launches to FILE."),
    "measure train.store": ("FILE", "Also save the runs in this store ('' for the default store)."),
    "measure whatif.changes": (
        "KEY=VALUE", "cached=0.5, workers=8, cores=4 (per rank), disk=2x, network=2x. Repeatable: all at once.", "--set"),
    # --- import, catalog
    "save": ("", "Also save the timings in your measurement store."),
    "import trace.store": ("FILE", "Save them in this store instead."),
    "import nccl-tests.store": ("FILE", "Save them in this store instead."),
    "devices_per_node": ("N", "Ranks per host; distinguishes network from interconnect."),
    "import trace.steps": ("N", "Number of steps in a trace without step markers."),
    "collective": ("NAME", "Collective, if the output does not name it."),
    "ranks": ("N", "Number of ranks, if the output does not state it."),
    "nodes": ("N", "Number of hosts, if the output does not state it."),
    "replace": ("", "Overwrite entries already in your catalog."),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Output:
    """Where the answer goes. Files that cannot be written are refused before the command runs."""

    json: bool = False
    files: list[Path] | None = None
    quiet: bool = False
    verbose: bool = False

    is_expected_later: typing.ClassVar[bool] = False  # where the command itself says what it writes

    @property
    def detail(self) -> int:
        return -1 if self.quiet else 1 if self.verbose else 0


@dataclasses.dataclass(frozen=True)
class Question:
    """What to predict."""

    model: str | None = None
    on: str | None = None
    plan: str | None = None
    batch: str | None = None
    batch_tokens: str | None = None
    micro_batch: str | None = None
    seq: str | None = None
    precision: str | None = None
    optimizer: str | None = None
    runtime: str | None = None
    headroom: str | None = None
    stragglers: str | None = None
    options: list[str] | None = None
    calibration: str | None = None

    def asked(self) -> dict[str, Any]:
        """Arguments of the public API; what was left out stays out."""
        needed = ((self.model, NO_MODEL), (self.on, NO_CLUSTER))
        missing = [fault for value, fault in needed if value is None]
        if missing:
            raise InputError("incomplete command:", faults=missing)
        texts = (
            "model",
            "on",
            "plan",
            "precision",
            "optimizer",
            "runtime",
            "headroom",
            "stragglers",
        )
        asked = {name: getattr(self, name) for name in texts}
        asked |= counts(vars(self), "micro_batch", "seq")
        asked["batch"] = batch_of(self.batch, self.batch_tokens)
        asked["runtime_options"] = assignments(self.options, "--set") or None
        return given({**asked, **self._measured()})

    def written(self) -> dict[str, Any]:
        """What `asked` puts values in place of, as it was written: a calibration and the machine at hand."""
        if self.calibration is None and not self._is_local:
            return {}
        options = assignments(self.options, "--set") or None
        files = {"calibration": self.calibration, "measured": None}
        return {"on": self.on, "runtime_options": options, **files}

    @property
    def _is_local(self) -> bool:
        return self.on is not None and LOCAL_PROCESSES.fullmatch(self.on) is not None

    def _measured(self) -> dict[str, Any]:
        """What a calibration, or this machine, changes in the question."""
        if self.on is None or (self.calibration is None and not self._is_local):
            return {}
        from foretrain.measurement.local import resolved

        on, calibration = resolved(self.on, self.calibration)
        arguments: dict[str, Any] = {"on": on, "measured": calibration}
        if self._is_local and calibration.host_seconds_per_kernel is not None:
            measured = {"host_seconds_per_kernel": calibration.host_seconds_per_kernel}
            arguments["runtime_options"] = {**measured, **assignments(self.options, "--set")}
        return arguments


@dataclasses.dataclass(frozen=True)
class OpenQuestion(Question):
    """A question whose plan is what is asked for."""

    LEFT_OUT: typing.ClassVar[tuple[str, ...]] = ("plan",)


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """How long to train, and what that costs: all the steps, not one."""

    tokens: str | None = None
    samples: str | None = None
    steps: str | None = None
    epochs: str | None = None
    dataset_samples: str | None = None
    dataset_tokens: str | None = None
    usd_per_hour: str | None = None
    pue: str | None = None
    mtbf: str | None = None
    restart: str | None = None
    checkpoint_rate: str | None = None

    def asked(self) -> dict[str, Any]:
        """Arguments of the public API; what was left out stays out."""
        return given(vars(self))


def given(arguments: dict[str, Any]) -> dict[str, Any]:
    """Without what was left out."""
    return {name: value for name, value in arguments.items() if value is not None}


def counts(arguments: dict[str, Any], *names: str) -> dict[str, int]:
    """Those of these arguments that were given, as whole numbers."""
    from foretrain.units import parse_count

    texts = given({name: arguments[name] for name in names})
    return {name: parse_count(text, f"--{name.replace('_', '-')}") for name, text in texts.items()}


def batch_of(batch: str | None, tokens: str | None) -> str | None:
    """As given; `resolving` knows samples from tokens."""
    if tokens is None:
        return batch
    if batch is not None:
        raise InputError("--batch and --batch-tokens are mutually exclusive.")
    return f"{tokens} tokens"


def assignments(texts: list[str] | None, flag: str) -> dict[str, Any]:
    """`key=value` texts as a mapping; a value that is JSON (a number, true, null …) is taken as such."""
    values: dict[str, Any] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InputError(f"{flag} {text!r} is not KEY=VALUE.")
        if key.strip() in values:
            raise InputError(f"{flag}: {key.strip()!r} is specified twice.")
        values[key.strip()] = literal(value.strip())
    return values


def literal(text: str) -> Any:
    """A JSON scalar, else the text itself."""
    from foretrain.loading import whole_number

    try:
        value = json.loads(text, parse_constant=lambda _: text, parse_int=whole_number)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, dict | list) else value
