"""RUN -> analysis.json, report.html: is it stable, does the answer depend on the solver, and how sure is that?"""

from odevit.report.analyze import Analysis as Analysis
from odevit.report.analyze import analyse as analyse
from odevit.report.section import SECTIONS as SECTIONS
from odevit.report.section import Section as Section
from odevit.report.study import Sizes as Sizes
