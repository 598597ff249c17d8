"""RUN -> analysis.json, report.html: is it stable, does the answer depend on the solver, and how sure is that?"""

from odevit.report import dependence as dependence
from odevit.report import early_stopping as early_stopping
from odevit.report import gaze as gaze
from odevit.report import groups as groups
from odevit.report import making as making
from odevit.report import settling as settling
from odevit.report import smoothness as smoothness
from odevit.report import teaching as teaching
from odevit.report import three_views as three_views
from odevit.report import trajectories as trajectories
from odevit.report.analyse import Analysis as Analysis
from odevit.report.analyse import analyse as analyse
from odevit.report.section import SECTIONS as SECTIONS
from odevit.report.section import Section as Section
from odevit.report.study import Sizes as Sizes
