"""RUN -> analysis.json, report.html: is it stable, does the answer depend on the solver, and how sure is that?"""

from odevit.report.collect import Analysis as Analysis
from odevit.report.collect import Sizes as Sizes
from odevit.report.collect import analyse as analyse
