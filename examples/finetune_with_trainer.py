"""The plain Trainer on a folder of pictures: `python examples/finetune_with_trainer.py PICTURES OUT`."""

import sys

from datasets import load_dataset
from transformers import AutoImageProcessor, AutoModelForImageClassification, Trainer, TrainingArguments

import odevit  # noqa: F401 (registers the bundled model with transformers' Auto classes)

folder, out = sys.argv[1:]
data = load_dataset("imagefolder", data_dir=folder, split="train").train_test_split(0.25, seed=0)
names = dict(enumerate(data["train"].features["label"].names))
processor = AutoImageProcessor.from_pretrained("cifar10")
model = AutoModelForImageClassification.from_pretrained("cifar10", id2label=names, ignore_mismatched_sizes=True)
data = data.with_transform(lambda some: {**processor(some["image"], return_tensors="pt"), "labels": some["label"]})
settings = TrainingArguments(out, num_train_epochs=3, remove_unused_columns=False, eval_strategy="epoch")
score = lambda found: {"accuracy": (found.predictions.argmax(-1) == found.label_ids).mean()}  # noqa: E731
trainer = Trainer(model, settings, train_dataset=data["train"], eval_dataset=data["test"], compute_metrics=score)
trainer.train()
print(trainer.evaluate())
print([names[number] for number in trainer.predict(data["test"]).predictions.argmax(-1)])
trainer.save_model(out)
