"""What migrations run is never edited: databases that are there already would not be changed."""

import hashlib
from importlib.resources import files

FROZEN = {
    "digest.sql": "262f64f68a4d03b4b2286dd036f086813a2fb9aaa3e2e6910f1333f3b7be5e6f",
    "guard_lease.sql": "08b9d78384d316c2c0c481115b98543721ae787fa3934b6b89ffae9a4940cbd2",
    "job_events.sql": "09e37be34631448d56d66b869c718cdc09a97148f1c879e47124d0ee8423616b",
    "metering.sql": "982e923d9ecd2263e5eb2aa68d234e6cb1680dbf2edd44f7b9b0953162a61302",
    "stage_is_type.sql": "5f973bcef27e231326151c864b15431331c15a5033b80e752bf85254f2a3744c",
}


def test_sql_that_migrations_run_is_never_edited() -> None:
    folder = files("jobreaper.sql") / "frozen"
    digests = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()
    }
    assert digests == FROZEN, "add a migration with a new file; one of a released version stays"
