"""Bywash as the router of a comparison, for the Python parts of the scripts here."""

import contextlib
import signal
import subprocess
import sys
import time

# Seconds to wait until it forwards, which takes long on a busy machine.
PATIENCE = 20


@contextlib.contextmanager
def running(command, log):
    """Runs `command`, a `bywash run` with its output in the file `log`, while the context lasts. Exits with the output if it
    does not begin to forward."""
    with open(log, "w") as file:
        router = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        until = time.monotonic() + PATIENCE
        while "forwarding;" not in (text := open(log).read()):
            if router.poll() is not None or time.monotonic() > until:
                sys.exit(f"bywash did not start: {text}")
            time.sleep(0.05)
        yield
    finally:
        router.send_signal(signal.SIGINT)
        router.wait()
