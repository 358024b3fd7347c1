"""Measures AF_XDP on veth by batch size and by ring size."""

import statistics

BATCHES = [1, 2, 4, 8, 16, 32, 64]
RINGS = [64, 128, 256, 512, 1024, 2048, 4096]
APPS = ["rxdrop", "txpush", "l2fwd"]


def curve(bench, option, values, rounds, seconds):
    """Returns the rates of each application in Mpps, one for each value of the option, or the reason why there are none. The
    rounds go through all values in turn."""
    samples = {(app, value): [] for app in APPS for value in values}
    for _ in range(rounds):
        for app, value in samples:
            figures, why = bench(["afxdp", "--rounds", "1", "--seconds", str(seconds), "--app", app, option, str(value)])
            if not figures:
                return None, why
            samples[app, value].append(figures["mpps"])
    return {app: [statistics.median(samples[app, value]) for value in values] for app in APPS}, None


def table(bench, draw, rounds, seconds):
    """Returns the tables of both options and draws their curves."""
    lines = []
    for option, values, name in (("--batch", BATCHES, "batch"), ("--ring", RINGS, "ring")):
        print(f"== AF_XDP by {name} size", flush=True)
        rates, why = curve(bench, option, values, rounds, seconds)
        if not rates:
            return f"Not here: {why}."
        lines += [f"| Mpps by {name} size | " + " | ".join(map(str, values)) + " |", "|---|" + "---|" * len(values)]
        lines += [f"| {app} | " + " | ".join(f"{rate:.2f}" for rate in of) + " |" for app, of in rates.items()]
        draw(f"afxdp-{name}", f"AF_XDP on veth by {name} size, 64 B", "Mpps", values, f"{name} size, frames", list(rates.items()), True)
        lines += ["", f"![AF_XDP by {name} size](img/afxdp-{name}.svg)", ""]
    return "\n".join(lines[:-1])
