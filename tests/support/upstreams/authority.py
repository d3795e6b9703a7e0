"""An authority of certificates that one test makes, and servers and clients that it has signed."""

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    """A private authority; ``file`` holds its certificate, as an operator names it in ``ca_file``."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _subject(name)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        made = (
            _builder(self._subject, self._subject, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def signed(self, *names: str, password: bytes | None = None) -> tuple[Path, Path]:
        """Make a certificate for some host names or addresses; return its file and that of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = (
            _builder(_subject(names[0]), self._subject, key)
            .add_extension(x509.SubjectAlternativeName([_named(name) for name in names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        certificate = self._folder / f"{self._name}-{names[0]}.pem"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        sealed = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        private = self._folder / f"{self._name}-{names[0]}.key"
        private.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)
        )
        return certificate, private

    def server(self, *names: str, clients: "Authority | None" = None) -> ssl.SSLContext:
        """Make the context of a server with these names; it wants a certificate that ``clients`` signed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.signed(*names))
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(clients.file)
        return context


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _named(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )
