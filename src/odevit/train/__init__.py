"""From a recipe to a model: the Trainer, its optimisers, and what a run leaves behind."""

from odevit.train.evaluate import Score as Score
from odevit.train.evaluate import evaluate_batches as evaluate_batches
from odevit.train.integration import IntegrationSampler as IntegrationSampler
from odevit.train.recipe import DataRecipe as DataRecipe
from odevit.train.recipe import Recipe as Recipe
from odevit.train.recipe import TrainRecipe as TrainRecipe
from odevit.train.run import train_recipe as train_recipe
