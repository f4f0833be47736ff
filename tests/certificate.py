"""A certificate that a server of the tests shows, signed by itself; made by openssl when a test process starts one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

__all__ = ["make_certificate"]


def make_certificate(folder: Path) -> tuple[Path, Path] | None:
    """The certificate for 127.0.0.1, and a file of key and certificate for the server; None where there is no openssl."""
    openssl = shutil.which("openssl")
    if openssl is None:
        return None
    key, certificate, both = (folder / name for name in ("key.pem", "certificate.pem", "server.pem"))
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3650",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", str(key),
         "-out", str(certificate)],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    both.write_text(key.read_text() + certificate.read_text())
    both.chmod(0o600)
    return certificate, both
