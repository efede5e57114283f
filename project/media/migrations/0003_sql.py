"""SQL functions for workers in other languages, and monitoring views."""

from django.db import migrations

from jobreaper.operations import InstallSQL


class Migration(migrations.Migration):
    dependencies = [("media", "0002_leases"), ("jobreaper", "0001_initial")]

    operations = [InstallSQL("Job"), InstallSQL("AsrJob")]
