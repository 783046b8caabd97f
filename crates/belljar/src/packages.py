import os, site, sys

requires, packages = sys.argv[1], sys.argv[2:]
try:
    from pip._vendor.packaging.specifiers import InvalidSpecifier, SpecifierSet
except ImportError:
    sys.exit(121)
if requires:
    version = "%d.%d.%d" % sys.version_info[:3]
    try:
        fits = SpecifierSet(requires).contains(version)
    except InvalidSpecifier:
        sys.exit(122)
    if not fits:
        print(version)
        sys.exit(123)
if packages:
    # With -I there is no user site, which the code has unless its interpreter is that of a virtual environment.
    is_fixed = not any(os.access(place, os.W_OK) for place in site.getsitepackages())
    if sys.prefix != sys.base_prefix and is_fixed:
        os.environ["PIP_PREFIX"] = site.getuserbase()
        print(site.getusersitepackages(), flush=True)
    options = "--quiet --no-input --no-cache-dir --progress-bar off --retries 1 --timeout 20".split()
    os.execv(sys.executable, [sys.executable, "-m", "pip", "install", *options, "--", *packages])
