"""Certificates for one test run, made by the openssl program: good ones and every kind of bad one."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """A certificate authority in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.certificate = directory / "ca.pem"
        self._key = directory / "ca.key"
        _openssl(
            "req", "-x509", *_NEW_KEY, "-days", "2", "-subj", "/CN=test authority",
            "-addext", "keyUsage=critical,keyCertSign", "-keyout", self._key,
            "-out", self.certificate,
        )  # fmt: skip

    def server(self, name: str, *, host: str = "IP:127.0.0.1", days: int = 2) -> ssl.SSLContext:
        """What a server needs whose certificate this authority signed for that host."""
        request = self._directory / f"{name}.csr"
        key, certificate = self._paths(name)
        _openssl(
            "req", "-new", *_NEW_KEY, "-subj", f"/CN={name}",
            "-addext", f"subjectAltName={host}", "-keyout", key, "-out", request,
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key,
            "-CAcreateserial", "-days", str(days), "-copy_extensions", "copy", "-out", certificate,
        )  # fmt: skip
        return _context(key, certificate)

    def self_signed(self, name: str) -> ssl.SSLContext:
        """What a server needs that vouches only for itself."""
        key, certificate = self._paths(name)
        _openssl(
            "req", "-x509", *_NEW_KEY, "-days", "2", "-subj", f"/CN={name}",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate,
        )  # fmt: skip
        return _context(key, certificate)

    def _paths(self, name: str) -> tuple[Path, Path]:
        return self._directory / f"{name}.key", self._directory / f"{name}.pem"


def _context(key: Path, certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def _openssl(*args: str | Path) -> None:
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, timeout=30)
