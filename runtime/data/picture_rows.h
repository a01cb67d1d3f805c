// Pictures as an array of a data set: files of a folder, or u8 arrays, prepared for a graph input.
//
// list_pictures() gives every picture below a folder, sorted by path; its class is the first folder
// of the path. Promises: a file that is no picture is left out with its reason (or refused under
// strict); one that changes after it was listed is refused when it is read, not used. Refuses
// (kData): folders without pictures, classes that a known list of classes does not have.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/data/picture.h"
#include "runtime/data/prepare.h"
#include "runtime/data/row_source.h"

namespace ortrain::data {

struct PictureFile {
  std::string path, key;  // key: below the root
  int64_t label = -1;
  int64_t size = 0, changed_ns = 0;
};

struct PictureFolder {
  std::vector<PictureFile> files;
  std::vector<std::string> classes;  // empty: the folder has no class folders
  PictureHead first;                 // of the first picture
  bool same_size = true;             // all are of that size
};

PictureFolder list_pictures(const std::string& root, const std::vector<std::string>* known_classes,
                            Skips& skips, bool strict, std::vector<std::string>& notes);
// Does the folder, or one directly below it, hold pictures?
bool holds_pictures(const std::string& root);

// Gives the pixels of sample i.
using Pixels = std::function<Picture(int64_t sample, const DecodeOptions& options)>;
Pixels pixels_of_files(std::vector<PictureFile> files);
// u8 [N,H,W,C], [N,C,H,W] or [N,H,W]; `array` must outlive the result.
Pixels pixels_of_array(const StoredArray& array, bool hwc);

// Sizes and layout of prepared pictures.
struct PictureForm {
  int channels = 3, height = 0, width = 0;
  bool hwc = false;
  DType dtype = DType::kF32;  // or kU8: pixels as they are
  Dims dims(int64_t samples) const {
    return hwc ? Dims{samples, height, width, channels} : Dims{samples, channels, height, width};
  }
};
// What `wanted` (nullptr: unknown) and the preparation say; completes `prepare` with what is taken
// by default, so that it says everything. Errors: kUsage, kData where both cannot be had.
PictureForm picture_form(const ArraySpec* wanted, Prepare& prepare, const PictureHead& first,
                         bool same_size);
// Can this input take pictures: rank 4, 1, 3 or 4 channels, float or u8?
bool takes_pictures(const ArraySpec& spec);

std::unique_ptr<RowSource> picture_rows(Pixels pixels, const Prepare& prepare,
                                        const PictureForm& form, bool training, uint64_t seed);

}  // namespace ortrain::data
