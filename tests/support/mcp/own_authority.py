"""A certificate for ``localhost`` that no authority of the system has signed."""

import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_certificate(folder: Path) -> Path:
    """Make a certificate that signs itself; return a file with it and its key.

    The folder can be used as ``SSL_CERT_DIR``.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    written = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / "certificate.pem"
    path.write_bytes(written + private)
    # The name under which OpenSSL looks for it in a folder.
    context = ssl.create_default_context(cafile=path)
    assert context.cert_store_stats()["x509_ca"] == 1
    (folder / f"{_subject_hash(made):08x}.0").write_bytes(written)
    return path


def _subject_hash(made: x509.Certificate) -> int:
    """Return the hash of the subject as ``openssl x509 -hash`` does: SHA-1 of its canonical form."""
    canonical = b""
    for part in made.subject.rdns:
        (attribute,) = part
        oid = bytes.fromhex("0603550403")
        text = attribute.value.encode() if isinstance(attribute.value, str) else attribute.value
        value = bytes([0x0C, len(text)]) + text.lower()
        pair = bytes([0x30, len(oid) + len(value)]) + oid + value
        canonical += bytes([0x31, len(pair)]) + pair
    digest = hashes.Hash(hashes.SHA1())
    digest.update(canonical)
    return int.from_bytes(digest.finalize()[:4], "little")
