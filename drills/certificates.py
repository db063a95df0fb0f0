"""Certificates for a drill, which the program `openssl` makes."""

import subprocess


# Who has a certificate unless a drill says otherwise, and from which authority: nobody knows the second one.
HOLDERS = (("node", "ca"), ("client", "ca"), ("stranger", "other"))


def certificates(folder, holders=HOLDERS):
    """Two authorities, and a certificate for each of these (name, authority): for loopback, and for the DNS name, without `false-` before it."""

    def openssl(*args):
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)

    for authority in ["ca", "other"]:
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", f"{authority}.key", "-out", f"{authority}.pem",
                "-subj", f"/CN={authority}")
    for name, authority in holders:
        dns = name.removeprefix("false-")
        (folder / "names").write_text(f"subjectAltName=DNS:localhost,IP:127.0.0.1,DNS:{dns}\n")
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/C=UN/O=Reef, Inc/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", "2",
                "-extfile", "names", "-out", f"{name}.pem")
        # As Java takes them.
        (folder / f"{name}-both.pem").write_text("".join((folder / f"{name}.{part}").read_text() for part in ("pem", "key")))


# What `openssl ca` wants to know.
OF_AUTHORITY = """[ca]
default_ca = this
[this]
database = {0}.index
crlnumber = {0}.number
default_md = default
default_crl_days = 2
"""


def revocation_list(folder, authority, revoked=()):
    """The list of an authority's certificates that are revoked by now: those that earlier calls have named, and these."""
    for name, text in (("index", ""), ("number", "01\n"), ("conf", OF_AUTHORITY.format(authority))):
        if not (folder / f"{authority}.{name}").exists():
            (folder / f"{authority}.{name}").write_text(text)

    def openssl(*args):
        files = ("-config", f"{authority}.conf", "-cert", f"{authority}.pem", "-keyfile", f"{authority}.key")
        return subprocess.run(["openssl", "ca", *files, *args], cwd=folder, check=True, capture_output=True, text=True).stdout

    for name in revoked:
        openssl("-revoke", f"{name}.pem")
    return openssl("-gencrl")
