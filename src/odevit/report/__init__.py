"""RUN -> analysis.json, report.html: is it stable, does the answer depend on the solver, and how sure is that?"""

from odevit.deprecated import keep_old_names
from odevit.report.analysis import Analysis as Analysis
from odevit.report.analysis import analyze as analyze
from odevit.report.section import SECTIONS as SECTIONS
from odevit.report.section import Section as Section
from odevit.report.study import Sizes as Sizes

keep_old_names(__name__)
