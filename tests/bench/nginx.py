"""The other yardstick: Debian's nginx as a sensible streaming proxy with one worker and a prefix of its own.

The runner starts what `command` returns; nothing here touches an nginx that the machine already runs.
"""

import os
import pwd
import shutil
import subprocess
from pathlib import Path

MISSING = "nginx was not found, so its column is left out (Debian, Ubuntu: apt-get install nginx-light)"

_CONFIG = """\
{user}worker_processes 1;
daemon off;
pid {prefix}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {prefix}/body;
  proxy_temp_path {prefix}/proxy;
  fastcgi_temp_path {prefix}/fastcgi;
  uwsgi_temp_path {prefix}/uwsgi;
  scgi_temp_path {prefix}/scgi;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  keepalive_requests 1000000;
  upstream engine {{
    server 127.0.0.1:{backend_port};
    keepalive 1024;
    keepalive_requests 1000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


def find() -> str | None:
    """The nginx binary, also where only root's PATH has it."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")


def version(binary: str) -> str:
    """The version, as in nginx/1.22.1."""
    said = subprocess.run([binary, "-v"], capture_output=True, text=True, check=False, timeout=10).stderr
    return said.rpartition("nginx version: ")[2].strip()


def command(binary: str, prefix: Path, port: int, backend_port: int) -> list[str]:
    """Write the configuration under `prefix` and return what starts it in the foreground."""
    prefix.mkdir()
    # Started by root, nginx would hand its worker to `nobody`, who may not enter the temporary prefix.
    user = f"user {pwd.getpwuid(0).pw_name};\n" if os.geteuid() == 0 else ""
    config = prefix / "nginx.conf"
    config.write_text(_CONFIG.format(user=user, prefix=prefix, port=port, backend_port=backend_port))
    return [binary, "-p", str(prefix), "-c", str(config)]
