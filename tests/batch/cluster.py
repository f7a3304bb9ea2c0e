"""A real cluster on loopback for tests: `ropewalk start dev` in a folder of its own."""

import os
import re
import signal
import subprocess
import sys
import time


def exit_on_sigterm():
    """Lets SIGTERM (of `timeout`, say) end this process by an exception, so that its `finally` clauses stop what it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


class DevCluster:
    """Started by the constructor, which returns when the workers are there; stop() ends exactly the processes that it started."""

    def __init__(self, ropewalk, folder, workers=2, slots=1):
        os.makedirs(folder, exist_ok=True)
        self.folder, self.ropewalk = folder, os.path.abspath(ropewalk)
        self.log = open(os.path.join(folder, "dev.log"), "wb")
        self.process = subprocess.Popen(
            [
                self.ropewalk,
                "start",
                "dev",
                "--dir",
                os.path.join(folder, "state"),
                "--port",
                "0",
                "--workers",
                str(workers),
                "--slots",
                str(slots),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.address = self.token_file = None
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"ropewalk start dev exited {self.process.returncode}:\n{self.said()}")
            found = re.search(r"(127\.0\.0\.1:\d+)", self.said())
            token = re.search(r"--token-file (\S+)|token[^/\n]*(/\S+)", self.said())
            if found and token and self.count_workers(found[1], token[1] or token[2]) >= workers:
                self.address, self.token_file = found[1], token[1] or token[2]
                return
            time.sleep(0.1)
        said = self.said()
        self.stop()
        raise RuntimeError(f"no cluster after 30 s:\n{said}")

    def said(self):
        with open(os.path.join(self.folder, "dev.log"), "rb") as file:
            return file.read().decode("utf-8", "replace")

    def count_workers(self, address, token_file):
        env = os.environ | {"ROPEWALK_MASTER": address, "ROPEWALK_TOKEN_FILE": token_file}
        done = subprocess.run([self.ropewalk, "worker", "list", "--output", "jsonl"], env=env, capture_output=True, text=True, timeout=20)
        return len(done.stdout.splitlines()) if done.returncode == 0 else 0

    def environment(self):
        return {"ROPEWALK_MASTER": self.address, "ROPEWALK_TOKEN_FILE": self.token_file}

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)  # its own session: only what we started
                self.process.wait()
        self.log.close()
