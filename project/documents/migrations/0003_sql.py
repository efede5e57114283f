"""SQL functions for workers in other languages, and monitoring views."""

from django.db import migrations

from jobreaper.operations import InstallSQL


class Migration(migrations.Migration):
    dependencies = [("documents", "0002_adoption"), ("jobreaper", "0001_initial")]

    operations = [InstallSQL("ExecutorJob")]
