"""Whether the operator says that it is well: SERVICE is the name of its Service in this namespace."""

import os
import urllib.request

service = os.environ["SERVICE"]
host = os.environ.get(service.upper().replace("-", "_") + "_SERVICE_HOST", service)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
with opener.open(f"http://{host}:{os.environ.get('PORT', '8081')}/healthz", timeout=30) as answer:
    print(f"the operator answers {answer.status}")
