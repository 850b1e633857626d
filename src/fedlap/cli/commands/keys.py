"""Commands about keys and certificates: authority, server, request, sign, install, revoke and show."""

from pathlib import Path
from typing import Annotated

import typer

from fedlap.cli.options import OUTPUT_PANEL, JsonOption

AuthorityOption = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the authority.")]
DaysOption = Annotated[
    int, typer.Option(metavar="N", help="Days of validity of the certificate.", min=1, max=36500)
]
HostsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST",
        help="DNS name or IP address that others dial (repeatable).",
        show_default=False,
    ),
]
AUTHORITY_FOLDER = Path("keys/authority")


def keys_authority_command(
    folder: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder to create for the authority.")
    ] = AUTHORITY_FOLDER,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the authority.")] = "fedlap",
    days: DaysOption = 3650,
) -> None:
    """Create an authority, which signs certificates.

    Its private key stays in the folder. Whoever has that key can admit clients.

    Example: fedlap keys authority
    """
    from fedlap.deploy.extra import check_deploy_extra

    check_deploy_extra("keys")
    from fedlap.cli.keys import make_authority

    make_authority(folder, name, days)


def keys_server_command(
    host: HostsOption = None,
    folder: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the server's keys.")] = Path(
        "keys/server"
    ),
    authority: AuthorityOption = AUTHORITY_FOLDER,
    days: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Days of validity of the certificate.",
            min=1,
            max=36500,
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = 365,
) -> None:
    """Create or renew the server's certificate, where the authority is.

    A running server takes a renewed certificate into use by itself. If the authority is on another machine,
    use `fedlap keys request --host`, `sign` and `install`.

    Example: fedlap keys server --host server.example.org --host 10.0.0.7
    """
    from fedlap.deploy.extra import check_deploy_extra

    check_deploy_extra("keys")
    from fedlap.cli.keys import make_server_keys

    make_server_keys(folder, authority, host or [], days)


def keys_request_command(
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the client or peer.", show_default=False)
    ] = None,
    host: HostsOption = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the keys. Default: one in `keys` for the name."),
    ] = None,
    new_key: Annotated[
        bool,
        typer.Option(
            "--new-key",
            metavar="",
            help="Replace the private key of the folder.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
) -> None:
    """Create a private key and a request for a certificate.

    Run it on the client's machine and send the request, which is not secret, to the authority. The private
    key stays in the folder. To renew a certificate, repeat the command: the request uses the same key.

    A client has a name, a server has hosts, and a peer that its neighbours dial has both. A peer without
    hosts, which only dials, uses a client's certificate.

    Example: fedlap keys request --name north
    """
    from fedlap.deploy.extra import check_deploy_extra

    check_deploy_extra("keys")
    from fedlap.cli.keys import make_request

    make_request(folder, name, host or [], new_key)


def keys_sign_command(
    request: Annotated[
        Path, typer.Argument(metavar="REQUEST", help="File of `fedlap keys request`.", show_default=False)
    ],
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Expected name; any other is refused.", show_default=False),
    ] = None,
    authority: AuthorityOption = AUTHORITY_FOLDER,
    days: DaysOption = 365,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File to write. Default: a file in the folder `issued` of the authority.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
) -> None:
    """Sign a request and add the certificate to the register.

    Send the signed file, which is not secret, back to the client. Make sure first that the request is from
    the client that it names.

    Example: fedlap keys sign north.pem --name north
    """
    from fedlap.deploy.extra import check_deploy_extra

    check_deploy_extra("keys")
    from fedlap.cli.keys import sign

    sign(request, authority, days, to, name)


def keys_install_command(
    signed: Annotated[
        Path, typer.Argument(metavar="FILE", help="File of `fedlap keys sign`.", show_default=False)
    ],
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the keys. Default: one in `keys` for the name."),
    ] = None,
) -> None:
    """Check a signed certificate and put it into the folder of its key.

    A running client uses a renewed certificate when it connects again.

    Example: fedlap keys install client-north-1.pem
    """
    from fedlap.deploy.extra import check_deploy_extra

    check_deploy_extra("keys")
    from fedlap.cli.keys import install

    install(signed, folder)


def keys_revoke_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the client or peer.", show_default=False)
    ],
    issue: Annotated[
        int | None,
        typer.Option(metavar="N", help="Issue to revoke. Default: all issues of the name.", min=1),
    ] = None,
    authority: AuthorityOption = AUTHORITY_FOLDER,
) -> None:
    """Revoke certificates of a client or peer.

    A running server, or a neighbour of a peer, refuses them as soon as it reads the changed register.

    Example: fedlap keys revoke north
    """
    from fedlap.deploy.extra import check_deploy_extra

    check_deploy_extra("keys")
    from fedlap.cli.keys import revoke

    revoke(authority, name, issue)


def keys_show_command(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of the authority, of a server or of a client.")
    ] = AUTHORITY_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """List certificates and when they expire.

    Warnings begin 30 days before a certificate expires.

    Example: fedlap keys show keys/client-north
    """
    from fedlap.deploy.extra import check_deploy_extra

    check_deploy_extra("keys")
    from fedlap.cli.keys import show

    show(folder, as_json)
