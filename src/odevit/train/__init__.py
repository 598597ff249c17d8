"""From a recipe to a model: tasks, the one life of a run, the Trainer, its optimisers, and what a run leaves behind."""

from odevit.deprecated import keep_old_names
from odevit.train.classifier import ClassifierTask as ClassifierTask
from odevit.train.classifier import train_recipe as train_recipe
from odevit.train.evaluate import Score as Score
from odevit.train.evaluate import evaluate_batches as evaluate_batches
from odevit.train.folder import RunFolder as RunFolder
from odevit.train.recipe import DataRecipe as DataRecipe
from odevit.train.recipe import Recipe as Recipe
from odevit.train.recipe import TrainRecipe as TrainRecipe
from odevit.train.schedule import SolverSampler as SolverSampler
from odevit.train.task import Task as Task

keep_old_names(__name__)
