"""Tables of speed: training, control, kernels, the server, exports, the simulator."""

from __future__ import annotations

from benchmarks.tables.layout import Result, Rows, gib, markdown
from chameleon_policy.rates import percent

MACHINES = ("2 CPU cores", "H200")
"""Machines of the pairs of result files, in order."""


def performance(result: Result) -> str:
    """Compare training and control with plain code, with peers and with the targets."""
    training, control = result["training"], result["control"]
    (ours, plain), fast = (training[name] for name in ("ours", "plain")), control["fast"]
    rows = [
        [
            "training step, `paper`, 64 x 64 frames, two 128 x 128 views",
            f"{ours['step_ms']:.0f} ms",
            f"{plain['step_ms']:.0f} ms, plain eager bf16",
            f"{training['speedup']:.1f} x",
            "4 x",
        ],
        ["its peak memory", gib(ours), gib(plain), f"{training['memory_ratio']:.2f}", "0.5"],
    ]
    for name, label, wanted in (
        ("observe", "`observe`, two 224 x 224 views", "1.5 ms"),
        ("act_8", "`act`, 8 Euler steps", "1 ms"),
        ("act_50", "`act`, 50 Euler steps", "5 ms"),
    ):
        latency, eager = (
            f"{fast[name]['p50_ms']:.2f} ms, p99 {fast[name]['p99_ms']:.2f}",
            control["eager"][name]["p50_ms"],
        )
        rows.append(
            [
                label,
                latency,
                f"{eager:.1f} ms, eager",
                f"{eager / fast[name]['p50_ms']:.1f} x",
                wanted,
            ]
        )
    whole = fast["observe"]["p50_ms"] + fast["act_8"]["p50_ms"]
    for name, peer in control["peers"].items():
        peer_cell = f"{peer['p50_ms']:.1f} ms, {name} ({peer['parameters'] / 1e6:.1f}M)"
        ratio = f"{peer['p50_ms'] / whole:.1f} x"
        rows.append(
            ["new pictures to a chunk of 16 actions", f"{whole:.2f} ms", peer_cell, ratio, ""]
        )
    return markdown(" | ours | next to it | ratio | wanted", rows)


def rewrite(before: Result, after: Result) -> str:
    """Compare a step and a tick before and after the kernels left the model."""

    def cells(result: Result, name: str, control: str) -> list[str]:
        training, ticks = result["training"], result["control"][control]
        ours, plain = training[name], training["plain"]
        memory = ours["peak_memory_bytes"] / plain["peak_memory_bytes"]
        return [
            f"{ours['step_ms']:.1f} ms",
            f"{plain['step_ms'] / ours['step_ms']:.2f} x",
            f"{memory:.2f}",
            *(f"{ticks[each]['p50_ms']:.2f} ms" for each in ("observe", "act_8", "act_50")),
        ]

    rows = [
        ["kernels inside the model, no limit", *cells(before, "ours", "fast")],
        ["fused twins, with the limit", *cells(after, "ours", "fast")],
        [
            "the same with the blocks of a 99 KiB card",
            *cells(after, "small_blocks", "small_blocks"),
        ],
    ]
    heading = " | training step | plain / ours | memory, ours / plain | `observe`"
    return markdown(f"{heading} | `act`, 8 steps | `act`, 50 steps", rows)


def length(result: Result) -> str:
    """List the cost of the memory layers by the length of an episode."""
    rows = []
    for steps, row in result["length"]["lengths"].items():
        ours, plain = row["ours"], row["plain"]
        times = [
            f"{ours['ms']:.1f} ms",
            f"{plain['ms']:.1f} ms",
            f"{plain['ms'] / ours['ms']:.1f} x",
        ]
        rows.append([steps, *times, gib(ours), gib(plain)])
    return markdown("steps | ours | plain | ratio | peak memory | plain", rows)


def kinds(result: Result) -> str:
    """List where the time of a training step goes."""
    return markdown(
        "kind of kernel | ms", [[name, f"{ms:.1f}"] for name, ms in result["kinds"].items()]
    )


def control(*results: Result) -> str:
    """List the cost of a control step relative to the beginning of an episode."""
    rows = []
    for machine, result in zip(MACHINES, results, strict=True):
        ticks = result["control"]["late"]
        first = ticks["10"]["p50_ms"]
        ratios = [
            f"{ticks[t]['p50_ms'] / first:.2f}" if t in ticks else "-" for t in ("1000", "100000")
        ]
        (size,) = {row["state_bytes"] for row in ticks.values()}
        rows.append(
            [
                result["control"]["preset"],
                machine,
                f"{first:.1f} ms",
                *ratios,
                f"{size / 2**20:.1f} MiB",
            ]
        )
    return markdown(
        "policy | hardware | `observe` at t = 10 | t = 1,000 | t = 100,000 | memory", rows
    )


def state_space(*results: Result) -> str:
    """List the time of the state-space layer, and of its peers as a multiple."""
    rows = []
    for machine, result in zip(MACHINES, results, strict=True):
        for shape, row in result["ssm"]["shapes"].items():
            times = row["forward_backward_ms"]
            ratios = [
                f"{times[peer] / times['ours']:.1f}" if peer in times else "-"
                for peer in ("transformers", "mamba-ssm")
            ]
            rows.append([machine, shape, f"{times['ours']:.1f} ms", *ratios])
    return markdown("hardware | streams x steps | ours | transformers' Mamba2 | mamba-ssm", rows)


def small_cards(result: Result) -> str:
    """List what the kernels of a policy need of each kind of card."""
    rows = []
    for row in result["rows"]:
        spilled = (
            "0"
            if row["spilled_bytes"] == 0
            else f"{row['spilled_bytes']} (`{row['most_spilled']}`)"
        )
        rows.append(
            [
                f"{row['card']}: {row['names']}",
                f"`{row['preset']}`",
                str(len(row["kernels"])),
                f"{row['shared_kib']:.0f} of {row['card_kib']} (`{row['largest']}`)",
                str(row["registers"]),
                spilled,
            ]
        )
    heading = "card | preset | kernels | shared memory of a block, KiB"
    return markdown(f"{heading} | registers of a thread | spilled bytes of a thread", rows)


def floor(result: Result) -> str:
    """List the operations and bytes of a training step and the time they take at least."""
    rows = [
        [
            name,
            f"{row['operations'] / 1e12:.1f} TFLOP",
            f"{row['operations_ms']:.0f} ms",
            f"{row['bytes_ms']:.0f} ms",
        ]
        for name, row in result["parts"].items()
    ]
    total = sum(row["operations"] for row in result["parts"].values())
    times = [f"{result[name]:.0f} ms" for name in ("operations_ms", "bytes_ms")]
    rows.append(["together", f"{total / 1e12:.1f} TFLOP", *times])
    return markdown("part | operations | time for them | time for bytes", rows)


def euler(result: Result) -> str:
    """Compare numbers of Euler steps by their actions and by success in closed loop."""
    rows = [
        [
            number,
            f"{row['difference_to_50_steps']:.4f}",
            f"{row['msr']['value']:.0%}",
            f"{row['dsr']['value']:.0%}",
        ]
        for number, row in result["steps"].items()
    ]
    return markdown("Euler steps | difference to 50 steps | MSR | DSR", rows)


def cpu_control(result: Result) -> str:
    """List latencies of the paper's policy on a CPU."""
    rows: Rows = []
    for name, label in (
        ("observe", "`observe`, two 224 x 224 views"),
        ("act_1", "`act`, 1 Euler step"),
        ("act_8", "`act`, 8 Euler steps"),
        ("act_50", "`act`, 50 Euler steps"),
    ):
        row = result["control"]["fast"][name]
        rows.append([label, f"{row['p50_ms']:.0f} ms", f"{row['p99_ms']:.0f} ms"])
    return markdown("call | p50 | p99", rows)


def recording(result: Result) -> str:
    """Compare training steps replayed as CUDA graphs with steps started by Python."""
    rows = [
        [f"`{name}`", f"{row['recorded_ms']:.0f} ms", f"{row['not_recorded_ms']:.0f} ms"]
        for name, row in result["recording"].items()
    ]
    return markdown("preset | recorded | not recorded", rows)


def curves(result: Result) -> str:
    """Compare how far loss curves lie apart."""
    apart = result["training"]["curves"]["mean_absolute_difference"]
    rows = [
        ["ours and plain", f"{apart['ours_to_plain']:.4f}"],
        ["plain, and plain with weights rounded once", f"{apart['plain_to_plain_rounded']:.4f}"],
    ]
    return markdown("loss curves | mean absolute difference", rows)


def training(*results: Result) -> str:
    """List how long training waits for data."""
    rows: Rows = []
    for machine, result in zip(MACHINES, results, strict=True):
        reading, steps = result["reading"], result["training"]
        for name, row in steps["data"].items():
            resident = "on the GPU" if machine == "H200" else "in memory"
            kept = {"resident": resident, "travelling": "copied to the GPU"}[name]
            cells = [
                f"{machine}, `{steps['preset']}`, {steps['batch']} episodes, {kept}",
                f"{reading['seconds']:.1f} s",
                f"{reading['frame_by_frame_ratio']:.1f} x as long",
                f"{row['step_ms']:.0f} ms",
                f"{row['wait_share']:.2%}",
            ]
            rows.append(cells)
    heading = "machine, policy, batch, data | reading | frame by frame with a seek each"
    return markdown(f"{heading} | a step | waiting for data", rows)


def camo(result: Result) -> str:
    """List the speed of the simulator with pictures and without."""
    rows = [
        [
            task,
            f"{row['rgb_steps_per_second']:.0f}",
            f"{row['state_steps_per_second']:.0f}",
            f"{row['ratio']:.0f} x as long",
        ]
        for task, row in result["tasks"].items()
    ]
    heading = "task | control steps/s with pictures | without"
    return markdown(f"{heading} | pictures in MuJoCo's default quality", rows)


def serving(*results: Result) -> str:
    """List ticks per second of the server by the number of clients."""
    rows: Rows = []
    clients: list[int] = []
    for machine, result in zip(MACHINES, results, strict=True):
        for policy, row in result["policies"].items():
            clients = [each["clients"] for each in row["server"]]
            ticks = [row["in_process"], *row["server"]]
            rows.append([machine, policy, *(f"{each['ticks_per_second']:.0f}" for each in ticks)])
    first, *others = clients
    columns = [f"{first} client", *map(str, others)]
    return markdown(" | ".join(["machine", "policy", "in one process", *columns]), rows)


def fairness(before: Result, after: Result) -> str:
    """Compare a robot's waits beside an expensive client before and after chunks had slices."""
    rows = []
    for old, new in zip(before["neighbours"], after["neighbours"], strict=True):
        sessions, steps = new["sessions"], new["steps"]
        asks = f"chunks of {steps} steps" if steps else "observations"
        waits = [
            f"{row[f'{call}_p50_ms']:.0f}, {row[f'{call}_p99_ms']:.0f} ms"
            for call in ("observe", "act")
            for row in (old, new)
        ]
        rows.append([f"{sessions} x {asks}" if sessions else "nobody", *waits])
    heading = "beside it | `observe`, before | now | `act`, before | now"
    return markdown(heading, rows)


def lerobot_server(result: Result) -> str:
    """Compare the overhead of LeRobot's policy server with ours."""
    peer, ours = result["lerobot"], result["policies"]["camo-small, 2 x 128 x 128"]
    rows = [
        [f"LeRobot {peer['version']}, {peer['policy']}", f"{peer['overhead_ms']:.1f} ms"],
        ["`chameleon serve`, camo-small, 2 x 128 x 128", f"{ours['overhead_ms']:.1f} ms"],
    ]
    return markdown("server and policy | added to a call", rows)


def lerobot_arrivals(result: Result) -> str:
    """List how many observations at 30 Hz reach the policy behind LeRobot's server."""
    shares = result["lerobot"]["share_reaching_the_policy_by_step"]
    rows = [[step, f"{percent(share)} %"] for step, share in shares.items()]
    return markdown("joints move per tick by | observations that reach the policy", rows)


def export_errors(result: Result) -> str:
    """List the largest differences between exported programs and their policies."""
    rows = [
        [
            method if method == "camo-small" else f"`{method}`",
            *(f"{row[name]:.1e}" for name in ("memory", "working", "actions")),
        ]
        for method, row in result["errors"].items()
    ]
    return markdown("method | memory | working state | actions", rows)


def export_speed(result: Result) -> str:
    """Compare exported programs with the policy in speed."""
    programs = ("FastControl", "torch.export", "ONNX Runtime")
    rows = [
        [
            threads,
            call,
            f"{row['eager']['ms']:.1f} ms",
            *(f"{row[name]['times_as_fast']:.2f}" for name in programs),
        ]
        for threads, calls in result["threads"].items()
        for call, row in calls.items()
    ]
    heading = "threads | call | the policy | `FastControl` | `torch.export` | ONNX Runtime"
    return markdown(heading, rows)
