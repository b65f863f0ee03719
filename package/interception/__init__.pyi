from .switch import install as install
from .switch import installed as installed
from .switch import load_ipython_extension as load_ipython_extension
from .switch import uninstall as uninstall
from .switch import unload_ipython_extension as unload_ipython_extension
