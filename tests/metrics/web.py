"""The host project as a web server of its own: prints its port and serves until it is killed."""

import os
from wsgiref.simple_server import make_server

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

from project.wsgi import application

if __name__ == "__main__":
    with make_server("127.0.0.1", 0, application) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
