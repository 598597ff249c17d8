"""Data sets by name, folder or hub id; device-resident batches; augmentation of whole batches."""

from odevit.data.augment.policy import Augmentation as Augmentation
from odevit.data.batches import Batches as Batches
from odevit.data.batches import DeviceBatches as DeviceBatches
from odevit.data.images import DataSet as DataSet
from odevit.data.images import Images as Images
from odevit.data.load import load_data as load_data
from odevit.data.load import named_sources as named_sources
from odevit.data.statistics import channel_statistics as channel_statistics
from odevit.data.stream import ImageStream as ImageStream
from odevit.data.stream_batches import StreamBatches as StreamBatches
from odevit.data.stream_batches import make_batches as make_batches
