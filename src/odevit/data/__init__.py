"""Data sets by name, folder or hub id; device-resident batches; augmentation of whole batches."""

from odevit.data.augment.policy import Augmentation as Augmentation
from odevit.data.batches import Batches as Batches
from odevit.data.batches import DeviceBatches as DeviceBatches
from odevit.data.batches import StreamBatches as StreamBatches
from odevit.data.batches import make_batches as make_batches
from odevit.data.class_names import align_classes as align_classes
from odevit.data.class_names import match_class_names as match_class_names
from odevit.data.decode import read_picture as read_picture
from odevit.data.images import DataSet as DataSet
from odevit.data.images import Images as Images
from odevit.data.images import ImageStream as ImageStream
from odevit.data.images import channel_statistics as channel_statistics
from odevit.data.loading import load_data as load_data
from odevit.data.source import DATA_SOURCES as DATA_SOURCES
from odevit.data.source import find_source as find_source
from odevit.deprecated import keep_old_names

keep_old_names(__name__)
