"""The host project, with an alias beside the pooler's that leads to the server itself."""

import os

from project.database import database_from_url
from tests.settings import *  # noqa: F403

DATABASES["direct"] = database_from_url(os.environ["DIRECT_URL"])  # noqa: F405
