"""TLS to other servers: which authorities are trusted, and this client's own certificate."""

import ssl
from typing import Final

from proxy.base.errors import ConfigError

_UNKNOWN_ISSUER: Final = frozenset({2, 18, 19, 20, 21})
"""OpenSSL's codes for a certificate whose authority is not known (``x509_vfy.h``): no issuer, signed by
itself, no local issuer, no chain that can be verified."""


def client_context(
    authorities: tuple[tuple[str, str], ...] = (), certificate: tuple[str, str, str] | None = None
) -> ssl.SSLContext:
    """Make the context of a client that trusts the system's authorities and further ones.

    ``authorities`` are pairs of a setting and the file that it names. ``certificate`` is the setting of the
    client's own certificate, its file, and the file of its key (empty if the first file has it, too).
    Raises :class:`~proxy.base.errors.ConfigError` with the setting for a file that cannot be used.
    """
    context = ssl.create_default_context()
    for setting, path in authorities:
        try:
            context.load_verify_locations(cafile=path)
        except ssl.SSLError:
            raise ConfigError(
                setting, f"{path} holds no certificates", "Name a file in PEM format (BEGIN CERTIFICATE)"
            ) from None
        except OSError as error:
            raise ConfigError(setting, f"{path} cannot be read: {error.strerror}") from None
    if certificate is not None:
        _load_own(context, *certificate)
    return context


def _load_own(context: ssl.SSLContext, setting: str, path: str, key: str) -> None:
    def refuse_password() -> str:
        raise ConfigError(
            setting,
            "the private key is encrypted",
            "Store it without a pass phrase, readable by this user only",
        )

    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(path, key or None, password=refuse_password)
    except ssl.SSLError:
        raise ConfigError(
            setting,
            f"{path} and its private key are not a certificate and the key that belongs to it",
            "Name files in PEM format: the certificate with its chain, and the key in it or in client_key",
        ) from None
    except OSError as error:
        raise ConfigError(setting, f"{path} or its key cannot be read: {error.strerror}") from None


def is_unknown_authority(error: Exception) -> bool:
    """Return whether a connection failed because nobody here knows who signed the server's certificate."""
    return isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _UNKNOWN_ISSUER


def wants_certificate(error: BaseException | None) -> bool:
    """Return whether a server ended a connection because of this client's certificate, or the lack of one.

    The names are those of TLS's alerts: RFC 8446, section 6.2.
    """
    reason = (getattr(error, "reason", None) or "") if isinstance(error, ssl.SSLError) else ""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)
