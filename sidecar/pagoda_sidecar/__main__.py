"""`python -m pagoda_sidecar`: the supervisor."""

import sys

from pagoda_sidecar.supervisor import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
