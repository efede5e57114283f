"""Operations for the migrations of a project that uses this package."""

from jobreaper.operations.build_index import BuildIndex
from jobreaper.operations.guard_lease import GuardLease
from jobreaper.operations.install_sql import InstallSQL
from jobreaper.operations.lease_columns import AddLeaseColumns

__all__ = ["AddLeaseColumns", "BuildIndex", "GuardLease", "InstallSQL"]
